# Speech in bash (4.4 or newer) and zsh. Install: `source /path/to/shell.sh` in ~/.bashrc or ~/.zshrc; miso-speak on PATH.
#
#   speak It is done.      speak words, or what is piped in; Ctrl-C or hush stops it
#   make; spoken           say whether the last command succeeded
#   miso_alert_s=120       a command that took longer is announced (30 s where it is not set; 0: never)

miso_alert_not=" emacs fg htop less man more nano nvim ssh tail tmux top vi vim watch " # they take as long as you like

speak() {
    if [ $# -gt 0 ]; then printf '%s\n' "$*" | miso-speak shell; else miso-speak shell; fi
}

hush() {
    miso-speak --stop shell
}

spoken() {
    local code=$?
    if [ $code -eq 0 ]; then speak Done.; else speak "It failed, with code $code."; fi
    return $code
}

_miso_announce() { # CODE SECONDS COMMAND
    local name=${3%%[[:space:];|&]*} how=done
    name=${name##*/}
    case ${miso_alert_not} in *" $name "*) return ;; esac
    [ "${miso_alert_s:-30}" -gt 0 ] && [ "$2" -ge "${miso_alert_s:-30}" ] || return 0
    [ "$1" -eq 0 ] || how=failed
    (printf '%s\n' "$name $how after $2 seconds." | miso-speak shell >/dev/null 2>&1 &)
}

if [ -n "${ZSH_VERSION-}" ]; then
    _miso_before() { _miso_at=$SECONDS _miso_command=$1; }
    _miso_after() {
        local code=$?
        [ -z "${_miso_at-}" ] || _miso_announce $code $((SECONDS - _miso_at)) "$_miso_command"
        unset _miso_at
    }
    autoload -Uz add-zsh-hook && add-zsh-hook preexec _miso_before && add-zsh-hook precmd _miso_after
else
    _miso_after() {
        local code=$? line
        line=$(HISTTIMEFORMAT='' builtin history 1)
        [ -z "${_miso_at-}" ] || _miso_announce $code $((SECONDS - _miso_at)) "$(sed 's/^ *[0-9]*[* ]*//' <<<"$line")"
        unset _miso_at
        return $code
    }
    PS0+='${PS0:(_miso_at = SECONDS, 0):0}' # bash expands it before each command; it prints nothing
    PROMPT_COMMAND="_miso_after${PROMPT_COMMAND:+; $PROMPT_COMMAND}"
fi
