# Speech in fish. Install: copy it to ~/.config/fish/conf.d/miso.fish; miso-speak on PATH.
#
#   speak It is done.         speak words, or what is piped in; Ctrl-C or hush stops it
#   make; spoken              say whether the last command succeeded
#   set -U miso_alert_s 120   a command that took longer is announced (30 s where it is not set; 0: never)

function speak --description 'Speak words, or what is piped in'
    if set -q argv[1]
        printf '%s\n' "$argv" | miso-speak shell
    else
        miso-speak shell
    end
end

function hush --description 'Stop what speak speaks'
    miso-speak --stop shell
end

function spoken --description 'Say whether the last command succeeded'
    set -l code $status
    if test $code -eq 0
        speak Done.
    else
        speak "It failed, with code $code."
    end
    return $code
end

function _miso_announce --on-event fish_postexec --argument-names line
    set -l code $status
    set -l seconds (math --scale=0 $CMD_DURATION / 1000)
    set -l name (path basename -- (string match --regex '[^\s;|&]+' -- $line))
    contains -- "$name" '' emacs fg htop less man more nano nvim ssh tail tmux top vi vim watch; and return
    set -l least 30
    set -q miso_alert_s; and set least $miso_alert_s
    test $least -gt 0 -a $seconds -ge $least; or return 0
    set -l how (test $code -eq 0; and echo done; or echo failed)
    printf '%s\n' "$name $how after $seconds seconds." | miso-speak shell >/dev/null 2>&1 &
    disown
end
