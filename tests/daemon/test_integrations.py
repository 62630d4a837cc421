"""docs/integrations against the real daemon, around the fake engine: each speaks what it is given, to the letter, and
stops its own alone.

The player is ours: a program named ffplay that logs what it gets. A program that is not installed has its test skipped.
"""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from harness import MISOCTL, lives, until

from misoctl.cli import cli

HERE = Path(__file__).parents[2] / "docs" / "integrations"
TEXT = "It's \"so\", $H `ls` 'n' %d \\n na\u00efve \u2013 \u65e5 & done.\n# Go on."
PLAYER = """#!/bin/sh
echo $$ > "$BOOTH/started"
wc -c > "$BOOTH/$$.partial" && mv "$BOOTH/$$.partial" "$BOOTH/played"
while [ -e "$BOOTH/hold" ]; do sleep 0.02; done
"""
CLIENT = """#!/bin/sh
[ "$1" = say ] || exec {misoctl} "$@"
echo "$*" >> "$BOOTH/arguments"
cat > "$BOOTH/$$.partial" && mv "$BOOTH/$$.partial" "$BOOTH/$$.heard"
exec {misoctl} "$@" < "$BOOTH/$$.heard"
"""


class Booth:
    """A PATH on which misoctl keeps what it was given before it speaks it, and ffplay what it was to play."""

    def __init__(self, home, path: Path):
        self.path, self.home = path, home
        for name, text in {"ffplay": PLAYER, "misoctl": CLIENT.format(misoctl=MISOCTL)}.items():
            self.program(name, text)
        shutil.copy(HERE / "miso-speak", path / "miso-speak")
        places = {"BOOTH": path, "HOME": path, "XDG_CACHE_HOME": path / "cache", "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        kept = {k: v for k, v in home.env.items() if k not in ("TMUX", "TMUX_PANE")}
        self.env = kept | {k: str(v) for k, v in places.items()} | {"PATH": f"{path}:{os.environ['PATH']}"}

    def program(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def run(self, *command, **more) -> subprocess.CompletedProcess:
        more = {"stdin": subprocess.DEVNULL} | more if "input" not in more else more
        options = {"env": self.env, "capture_output": True, "text": True, "timeout": 60, "check": False} | more
        return subprocess.run([str(part) for part in command], **options)  # noqa: PLW1510

    def heard(self) -> list[str]:
        files = sorted(self.path.glob("*.heard"), key=lambda file: file.stat().st_mtime_ns)
        return [file.read_text() for file in files]

    def hears(self, text: str, least_samples: int = 4800) -> None:
        """`text` and nothing else was spoken, and the player got it."""
        played = self.path / "played"
        until(played.exists, f"{text!r} to be played; heard {self.heard()}")
        assert [heard.rstrip("\n") for heard in self.heard()] == [text]
        assert int(played.read_text()) > 2 * least_samples
        for file in (*self.path.glob("*.heard"), played, self.path / "started"):
            file.unlink()

    def hears_like(self, pattern: str) -> None:
        until(lambda: len(self.heard()) == 1, f"{pattern} to be spoken; heard {self.heard()}")
        assert re.fullmatch(pattern, self.heard()[0].rstrip("\n"))

    def process(self, *command, text: str | None = None) -> subprocess.Popen:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        streams |= {"stdin": subprocess.PIPE} if text is not None else {}
        process = subprocess.Popen([str(part) for part in command], env=self.env, **streams)
        self.home.processes.append(process)
        if text is not None:
            process.stdin.write(text.encode())
            process.stdin.close()
        return process

    def hold(self) -> None:
        (self.path / "hold").touch()

    def player(self) -> int:
        started = self.path / "started"
        until(lambda: started.exists() and started.read_text().strip(), "the player to start")
        return int(started.read_text())


@pytest.fixture
def booth(shared_fake, tmp_path):
    booth = Booth(shared_fake, tmp_path)
    yield booth
    (tmp_path / "hold").unlink(missing_ok=True)


@pytest.fixture
def stranger(booth):
    """Another's misoctl, which waits for its text: whatever is stopped, it is not."""
    process = booth.home.misoctl_process("say", stdin=subprocess.PIPE)
    yield process
    assert process.poll() is None
    process.kill()


def needs(program: str):
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")


class Terminal:
    """A program on a terminal, and its keys."""

    def __init__(self, booth: Booth, *command: str):
        self.keys, inner = pty.openpty()
        termios.tcsetwinsize(inner, (24, 80))
        streams = {"stdin": inner, "stdout": inner, "stderr": inner}
        command = ["setsid", "--ctty", *command] if shutil.which("setsid") else command
        self.process = subprocess.Popen(command, env=booth.env, cwd=booth.path, **streams)
        booth.home.processes.append(self.process)
        os.close(inner)
        self.shown = b""
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        try:
            while data := os.read(self.keys, 4096):
                self.shown += data
        except OSError:  # the program ended
            pass

    def type(self, keys: str) -> None:
        os.write(self.keys, keys.encode())

    def shows(self, words: str) -> None:
        until(lambda: words.encode() in self.shown, f"{words!r} on the terminal: {self.shown[-500:]!r}", hang_s=60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.keys)


@pytest.fixture
def terminal(booth):
    opened = []
    yield lambda *command: opened.append(Terminal(booth, *command)) or opened[-1]
    for each in opened:
        each.close()


# ---- miso-speak, and what calls it


def test_miso_speak_stops_what_its_name_speaks_and_nothing_else(booth, stranger):
    booth.hold()
    speak = [str(booth.path / "miso-speak"), "one"]
    first = booth.process(*speak, text=TEXT)
    player = booth.player()
    assert booth.run(*speak[:1], "--stop", "two").returncode == 0
    assert first.poll() is None and lives(player)
    (booth.path / "hold").unlink()
    booth.hold()
    second = booth.process(*speak, text="Another.")  # takes its place
    assert first.wait(15) == 143
    until(lambda: not lives(player), "the first player to end")
    until(lambda: "Another." in booth.heard(), "the second to speak")
    assert booth.run(*speak[:1], "--stop", "one").returncode == 0
    assert second.wait(15) in (143, -signal.SIGTERM)  # Python may not be there yet
    assert booth.run(*speak[:1], "--stop", "one").returncode == 0  # nothing to stop is no failure


def test_a_pid_that_was_used_again_is_not_stopped(booth):
    other = booth.process("sleep", "60")
    (booth.path / "cache" / "miso-speak").mkdir(parents=True)
    (booth.path / "cache" / "miso-speak" / "one").write_text(f"{other.pid}\n")
    assert booth.run(booth.path / "miso-speak", "--stop", "one").returncode == 0
    assert other.poll() is None


def test_a_name_that_would_leave_its_directory_is_refused(booth):
    done = booth.run(booth.path / "miso-speak", "../x", input=TEXT)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not booth.heard()


def test_raycast(booth):
    shutil.copy(HERE / "raycast-speak.sh", booth.path / "raycast")
    booth.program("pbpaste", '#!/bin/sh\ncat "$BOOTH/clipboard"\n')
    clipboard = booth.path / "clipboard"
    clipboard.write_text("")
    assert booth.run(booth.path / "raycast").returncode == 1
    clipboard.write_text(TEXT)
    booth.hold()
    assert booth.run(booth.path / "raycast").stdout == "Speaking\n"
    player = booth.player()
    assert booth.run(booth.path / "raycast").stdout == "Silence\n"
    until(lambda: not lives(player), "the player to end")
    assert booth.heard() == [TEXT]


def test_vscode(booth):
    lines = (HERE / "vscode-tasks.json").read_text().splitlines()
    tasks = {task["label"]: task for task in json.loads("\n".join(x for x in lines if not x.startswith("//")))["tasks"]}
    (booth.path / "it's a file.txt").write_text("Of a file.")
    known = {"${selectedText}": TEXT, "${file}": str(booth.path / "it's a file.txt")}
    for label, words in {"miso: speak selection": TEXT, "miso: speak file": "Of a file."}.items():
        task = tasks[label]
        told = {name: known[value] for name, value in task["options"]["env"].items()}
        assert booth.run(task["command"], *task["args"], env=booth.env | told).returncode == 0
        booth.hears(words)
    stop = tasks["miso: stop"]
    assert booth.run(stop["command"], *stop["args"]).returncode == 0


def test_hammerspoon_is_lua():
    luac = shutil.which("luac") or shutil.which("luac5.4")
    if not luac:
        pytest.skip("luac is not installed")
    subprocess.run([luac, "-p", str(HERE / "hammerspoon.lua")], check=True)


# ---- shells


@pytest.mark.parametrize(
    ("shell", "arguments", "file"),
    [
        pytest.param("bash", ["--norc", "-i"], "shell.sh", marks=needs("bash")),
        pytest.param("zsh", ["-f", "-i"], "shell.sh", marks=needs("zsh")),
        pytest.param("fish", ["--no-config", "-i"], "shell.fish", marks=needs("fish")),
    ],
)
def test_a_shell(booth, terminal, shell, arguments, file):
    shown = terminal(shell, *arguments)
    shown.type(f"source '{HERE / file}'; echo rea''dy\r")
    shown.shows("ready")
    shown.type("speak \"It's\" 'a  \"word\"'; echo spo''ke\r")
    booth.hears('It\'s a  "word"')
    shown.type("false; spoken; echo wi''th $" + ("status" if shell == "fish" else "?") + "\r")
    booth.hears("It failed, with code 1.")
    shown.shows("with 1")
    shown.type("miso_alert_s=1\r" if shell != "fish" else "set -g miso_alert_s 1\r")
    shown.type("true; sleep 1.2; false\r")  # the first two lines are not announced
    booth.hears_like(r"true failed after \d+ seconds\.")


# ---- git


@needs("git")
def test_git_hooks(booth):
    identity = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    none = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def git(*arguments: str) -> subprocess.CompletedProcess:
        return booth.run("git", "-C", booth.path / "work", *arguments, env=booth.env | identity | none)

    booth.run("git", "init", "-q", "--bare", booth.path / "origin")
    booth.run("git", "init", "-q", "-b", "main", booth.path / "work")
    git("remote", "add", "origin", str(booth.path / "origin"))
    for hook in ("post-commit", "pre-push"):
        shutil.copy(HERE / "git-hook", booth.path / "work" / ".git" / "hooks" / hook)
    subject = 'It\'s "quoted", $HOME `date` %d'
    assert git("commit", "--allow-empty", "-qm", subject).returncode == 0
    booth.hears(f"Committed: {subject}.")
    assert git("push", "-q", "origin", "main").returncode == 0  # no check, no word
    git("config", "miso.check", "cat; exit 3")
    git("commit", "--allow-empty", "-qm", "Again")
    booth.hears("Committed: Again.")
    assert git("push", "-q", "origin", "main").returncode == 1
    booth.hears("The check failed. Nothing is pushed.")
    git("config", "miso.check", "true")
    assert git("push", "-q", "origin", "main").returncode == 0
    booth.hears("The check passed. Pushing to origin.")
    (booth.path / "misoctl").write_text("#!/bin/sh\nexit 70\n")
    assert git("commit", "--allow-empty", "-qm", "Unheard").returncode == 0


# ---- editors

VIM = """
source {file}
call setline(1, {lines})
let g:kept = @z
if {what} ==# 'paragraph'
  normal! 4G
  Miso
elseif {what} ==# 'selection'
  exe "normal! 1G2lv2G03l\\<Esc>"
  exe "normal gv\\\\s"
else
  %Miso
endif
function! Wait(name)
  let n = 0
  while !filereadable(a:name) && n < 300
    sleep 50m
    let n += 1
  endwhile
endfunction
if {stop}
  call Wait({started})
  MisoStop
endif
call Wait({gone})
qa!
"""


@pytest.mark.parametrize("editor", [pytest.param("vim", marks=needs("vim")), pytest.param("nvim", marks=needs("nvim"))])
class TestVim:
    LINES = (*TEXT.split("\n"), "", 'The paragraph\'s "one" line.')

    def edit(self, booth, editor: str, what: str, stop: bool = False) -> subprocess.Popen:
        lines = json.dumps(self.LINES, ensure_ascii=False)
        told = {"file": HERE / "miso.vim", "lines": lines, "what": f"'{what}'", "stop": int(stop)}
        script = VIM.format(started=f"'{booth.path / 'started'}'", gone=f"'{booth.path / 'gone'}'", **told)
        (booth.path / "script.vim").write_text(script)
        quiet = ["--headless"] if editor == "nvim" else ["--not-a-term"]
        return booth.process(editor, *quiet, "-N", "-u", "NONE", "-i", "NONE", "-n", "-S", booth.path / "script.vim")

    @pytest.mark.parametrize(
        ("what", "words"),
        [
            ("buffer", "\n".join(LINES)),
            ("paragraph", LINES[-1]),
            ("selection", LINES[0][2:] + "\n" + LINES[1][:4]),
        ],
        ids=["buffer", "paragraph", "selection"],
    )
    def test_it_speaks(self, booth, editor, what, words):
        process = self.edit(booth, editor, what)
        booth.hears(words)
        (booth.path / "gone").touch()
        assert process.wait(20) == 0

    def test_it_stops_its_own(self, booth, editor, stranger):
        booth.hold()
        process = self.edit(booth, editor, "buffer", stop=True)
        player = booth.player()
        until(lambda: not lives(player), "the player to end")
        assert process.poll() is None  # stopped, not ended with the editor
        (booth.path / "gone").touch()
        assert process.wait(20) == 0


EMACS = """
(progn
  (load {file})
  (defun wait-for (name)
    (let ((n 0))
      (while (and (not (file-exists-p name)) (< n 300)) (accept-process-output nil 0.05) (setq n (1+ n)))))
  (with-temp-buffer
    (insert {text})
    {do}
    (when {stop} (wait-for {started}) (miso-stop))
    (wait-for {gone})))
"""


@needs("emacs")
class TestEmacs:
    LINES = TestVim.LINES
    DO = (
        ("(miso-speak-buffer)", "\n".join(LINES)),
        ("(miso-speak)", LINES[-1]),
        ("(progn (transient-mark-mode 1) (set-mark 3) (goto-char 9) (activate-mark) (miso-speak))", LINES[0][2:8]),
    )

    def edit(self, booth, do: str, stop: bool = False) -> subprocess.Popen:
        names = {"file": HERE / "miso.el", "started": booth.path / "started", "gone": booth.path / "gone"}
        told = {name: json.dumps(str(value)) for name, value in names.items()}
        text = json.dumps("\n".join(self.LINES), ensure_ascii=False)
        script = EMACS.format(do=do, text=text, stop="t" if stop else "nil", **told)
        (booth.path / "script.el").write_text(script)
        return booth.process("emacs", "-Q", "--batch", "-l", booth.path / "script.el")

    @pytest.mark.parametrize(("do", "words"), DO, ids=["buffer", "paragraph", "region"])
    def test_it_speaks(self, booth, do, words):
        process = self.edit(booth, do)
        booth.hears(words)
        (booth.path / "gone").touch()
        assert process.wait(20) == 0

    def test_it_stops_its_own(self, booth, stranger):
        booth.hold()
        process = self.edit(booth, "(miso-speak-buffer)", stop=True)
        player = booth.player()
        until(lambda: not lives(player), "the player to end")
        assert process.poll() is None
        (booth.path / "gone").touch()
        assert process.wait(20) == 0

    def test_it_compiles_without_a_warning(self, booth):
        shutil.copy(HERE / "miso.el", booth.path / "miso.el")
        strict = "(setq byte-compile-error-on-warn t)"
        done = booth.run("emacs", "-Q", "--batch", "--eval", strict, "-f", "batch-byte-compile", booth.path / "miso.el")
        assert done.returncode == 0, done.stderr


# ---- tmux


@needs("tmux")
def test_tmux(booth, terminal, stranger):
    (booth.path / "words").write_text(TEXT.split("\n")[0])
    command = ["tmux", "-S", str(booth.path / "tmux"), "-f", str(HERE / "tmux.conf")]
    shown = terminal(*command, "new-session", f"cat {booth.path / 'words'}; exec cat")
    try:
        shown.shows("done.")
        shown.type("\x02S")
        booth.hears(TEXT.split("\n")[0])
        booth.hold()
        booth.run(*command[:3], "copy-mode")
        booth.run(*command[:3], "send-keys", "-X", "history-top")
        booth.run(*command[:3], "send-keys", "-X", "select-line")
        shown.type("S")
        player = booth.player()
        assert booth.heard()[0].strip() == TEXT.split("\n")[0]
        shown.type("\x02\x1bs")
        until(lambda: not lives(player), "the player to end")
    finally:
        booth.run(*command[:3], "kill-server")


# ---- a coding agent


@pytest.mark.slow
@pytest.mark.skipif(
    "when" not in {p.name for p in cli.commands["say"].params}, reason="no speech floor in this misoctl"
)
@pytest.mark.parametrize("by", ["stdin", "argument"])
def test_an_agents_notification(booth, by):
    message = f"By {by}: {TEXT}"  # two texts: the floor says one that the same app just said once
    event = json.dumps({"hook_event_name": "Notification", "message": message, "cwd": "/home/me/it's"})
    hook = booth.path / "agent-notify"
    shutil.copy(HERE / "agent-notify", hook)
    done = booth.run(hook, input=event) if by == "stdin" else booth.run(hook, event)
    assert (done.returncode, done.stderr) == (0, "")
    booth.hears("it's: " + message.split("\n")[0])
    assert (booth.path / "arguments").read_text().strip() == "say -q --app agent --priority low --when drop"


@pytest.mark.parametrize("event", ["", "[]", "no json", '{"cwd": 3}'])
def test_an_event_that_is_none_is_one_line(booth, event):
    done = booth.run(HERE / "agent-notify", input=event)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and not booth.heard()


def test_an_agent_without_misoctl_is_told_so_in_one_line(booth):
    done = booth.run(
        sys.executable, HERE / "agent-notify", input='{"message": "x"}', env=booth.env | {"PATH": "/nowhere"}
    )
    assert done.returncode == 1 and "cannot run misoctl" in done.stderr and done.stderr.count("\n") == 1


# ---- pages


@needs("ffmpeg")
@needs("sox")
def test_each_pipeline_of_the_page_makes_its_file(booth):
    first = re.search(r"```sh\n(.*?)```", (HERE / "pipelines.md").read_text(), re.DOTALL)[1]
    for line in first.splitlines():
        done = booth.run("bash", "-o", "pipefail", "-c", line, cwd=booth.path)
        assert (done.returncode, done.stderr) == (0, ""), line
        made = re.search(r"\S+\.(mp3|opus|flac|wav)", line)[0]
        asked = ["ffprobe", "-v", "error", "-of", "csv=p=0", "-show_entries", "format=duration", booth.path / made]
        seconds = float(booth.run(*asked).stdout)
        assert 0.1 < seconds < 20, line


def test_the_index_names_every_file():
    named = set(re.findall(r"\]\(([^)/]+)\)", (HERE / "README.md").read_text()))
    assert named | {"README.md"} == {file.name for file in HERE.iterdir()}
