"""misoctl where no daemon runs: what is refused, with which exit code and line, before anything is started."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgpack
import pytest
import zmq

from misoctl import cli
from protocol import codec, errors
from protocol import messages as m
from protocol.paths import find_paths

TEXT_LIMIT = m.MAX_TEXT_BYTES
ROOT = str(Path(cli.__file__).parents[1])


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def environ_of(home: Path) -> dict[str, str]:
    return os.environ | {"MISO_HOME": str(home)}


@pytest.fixture
def misoctl(home):
    """Runs it; asserts what holds of every run: no traceback, no repr of bytes, and no daemon or file left behind."""

    def run(*arguments, stdin=b"", **options) -> subprocess.CompletedProcess:
        environ = os.environ | {"MISO_HOME": str(home)} | options.pop("env", {})
        command = [sys.executable, "-m", "misoctl", *arguments]
        options = {"capture_output": True, "timeout": 30, "check": False} | options
        done = subprocess.run(command, input=stdin, env=environ, **options)  # noqa: PLW1510
        assert b"Traceback" not in (done.stderr or b"")
        assert not (home / "run" / "misod.lock").exists()
        return done

    return run


def say(misoctl, *arguments, **options):
    return misoctl("say", "--no-start", *arguments, **options)


def one_line(done, code: int) -> str:
    assert done.returncode == code, done.stderr
    line = done.stderr.decode()
    assert line.startswith("misoctl: ")
    assert line.count("\n") == 1
    assert not done.stdout
    return line


def usage(done) -> str:
    assert done.returncode == errors.USAGE, done.stderr
    assert not done.stdout
    return done.stderr.decode()


# ---- no daemon


@pytest.mark.parametrize("arguments", [("say", "--no-start", "hi"), ("status",), ("status", "--json")])
def test_without_a_daemon_it_is_exit_69_with_the_cure(misoctl, home, arguments):
    line = one_line(misoctl(*arguments), errors.UNAVAILABLE)
    assert str(home / "run" / "misod.sock") in line
    assert "misoctl start" in line
    assert not home.exists()


def test_a_socket_that_nobody_listens_on_is_no_daemon(misoctl, home):
    (home / "run").mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(home / "run" / "misod.sock"))
    one_line(misoctl("status"), errors.UNAVAILABLE)


def test_stop_without_a_daemon_is_no_error(misoctl):
    done = misoctl("stop")
    assert (done.returncode, done.stderr) == (0, b"misoctl: misod is not running\n")
    assert misoctl("stop", "-q").stderr == b""


def test_version_says_that_none_runs(misoctl):
    done = misoctl("--version")
    assert done.returncode == 0
    assert re.fullmatch(rb"misoctl \d+\.\d+\.\d+ \(protocol 1\.2\)\nmisod   not running\n", done.stdout)


def test_no_start_makes_no_file(misoctl, tmp_path):
    one_line(say(misoctl, "hi", "-o", str(tmp_path / "out.wav")), errors.UNAVAILABLE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_run_directory_that_others_can_enter_is_refused(misoctl, home, mode):
    (home / "run").mkdir(parents=True)
    (home / "run").chmod(mode)
    assert "chmod 700" in one_line(say(misoctl, "hi"), errors.NO_PERMISSION)
    assert "chmod 700" in one_line(misoctl("say", "hi", "-o", str(home / "x.wav")), errors.NO_PERMISSION)


def test_a_linked_run_directory_is_refused(misoctl, home, tmp_path):
    home.mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (home / "run").symlink_to(tmp_path / "elsewhere")
    assert "not a link" in one_line(misoctl("status"), errors.NO_PERMISSION)


def test_a_miso_home_of_an_unknown_user_is_one_line(misoctl):
    assert "MISO_HOME" in one_line(misoctl("status", env={"MISO_HOME": "~nobody-of-that-name"}), errors.NO_PERMISSION)


# ---- the command line


@pytest.mark.parametrize(
    ("option", "values", "shown"),
    [
        ("--seed", ["-1", "4294967296", "x", "1.5"], "0<=x<=4294967295"),
        ("--temperature", ["-0.1", "2.1", "nan", "inf", "x"], "0<=x<=2"),
        ("--top-k", ["0", "4097", "x"], "1<=x<=4096"),
        ("--max-seconds", ["0", "0.07", "7201", "nan"], "0.08<=x<=7200"),
        ("--speaker", ["-1", "100", "x"], "0<=x<=99"),
    ],
)
def test_a_value_out_of_range_is_exit_2_with_the_range(misoctl, option, values, shown):
    for value in values:
        said = usage(say(misoctl, "hi", option, value))
        assert option in said
        assert shown in said or f"'{value}' is not a valid" in said


def test_the_ranges_of_the_command_line_are_those_of_the_wire():
    """Or a value that --help allows would be refused by the daemon."""
    kinds = {p.name: p.type for p in cli.cli.commands["say"].params}
    for name, limit in m.Say.limits().items():
        if name in kinds and limit.kind in ("int", "float"):
            assert (kinds[name].min, kinds[name].max) == (limit.low, limit.high), name


def test_a_rate_is_refused_by_name_with_what_does_it(misoctl):
    said = usage(say(misoctl, "-r", "200", "hi"))
    assert "-r is not there" in said and "atempo" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--follow", "hi"), "--follow reads standard input"),
        (("--follow", "-f", "x"), "--follow reads standard input"),
        (("--follow", "--script", "x"), "--follow reads standard input"),
        (("--follow", "--when", "queue"), "--follow takes no turns"),
        (("--follow", "--resume"), "--follow takes no turns"),
        (("--follow", "--when", "drop"), "--follow takes no turns"),
        (("--follow", "--app", "x"), "--follow takes no turns"),
        (("--events", "--json", "hi"), "give one of them"),
        (("--events", "-o", "-", "hi"), "--events and the speech"),
        (("--no-wait", "--json", "hi"), "--no-wait tells nothing"),
        (("--no-wait", "--follow"), "--no-wait tells nothing"),
        (("--no-wait", "--raw", "hi"), "cannot write to standard output"),
        (("--highlight", "hi"), "needs a terminal"),
        (("--stems", "x", "hi"), "--stems is for --script"),
    ],
)
def test_what_does_not_go_together_is_exit_2(misoctl, arguments, said):
    assert said in usage(say(misoctl, *arguments))


def test_follow_reads_no_other_file_where_standard_input_is_closed(home):
    command = ["sh", "-c", f"{sys.executable} -m misoctl say --no-start --follow <&-"]
    done = subprocess.run(command, env=environ_of(home), capture_output=True, timeout=30, check=False)
    assert "which is closed" in usage(done)


@pytest.mark.parametrize("arguments", [("--loud", "hi"), ("-5",), ("hi", "--speed=2")])
def test_an_unknown_flag_is_exit_2(misoctl, arguments):
    assert "No such option" in usage(say(misoctl, *arguments))


def test_a_misspelt_option_has_one_nearest_and_one_without_its_value_names_its_verb(misoctl):
    assert "No such option '--vioce': did you mean --voice?; see" in usage(say(misoctl, "--vioce", "anna", "hi"))
    assert "No such option '--no-wiat': did you mean --no-wait?; see" in usage(say(misoctl, "--no-wiat", "hi"))
    assert "see `misoctl say --help`" in usage(say(misoctl, "hi", "-o"))


def test_no_verb_at_all_is_the_help_and_exit_2(misoctl):
    done = misoctl()
    assert done.returncode == errors.USAGE and done.stdout == b""
    assert done.stderr.startswith(b"Usage: misoctl") and b"Exit codes:" not in done.stderr
    assert b"Exit codes:" in misoctl("--help").stdout


def test_an_unknown_verb_is_exit_2(misoctl):
    assert "No such command" in usage(misoctl("speak", "hi"))


def test_text_that_begins_with_a_dash_goes_after_two(misoctl):
    one_line(say(misoctl, "--", "-5 degrees", "-o"), errors.UNAVAILABLE)


def test_help_names_every_exit_code(misoctl):
    said = misoctl("--help").stdout.decode()
    assert all(len(line) < 80 for line in said.splitlines())
    for code, text in errors.EXIT_CODES.items():
        assert f"{code} {text}" in " ".join(said.split())


# ---- the text


@pytest.mark.parametrize("words", [[""], ["   "], ["...", "!?"], ["🎉"], ["\u200b"], ["-", "-"], ["\n\t"]])
def test_nothing_to_say_in_the_arguments_is_exit_2(misoctl, words):
    assert "nothing to say" in usage(say(misoctl, *words))


@pytest.mark.parametrize("data", [b"", b"  \n\n ", b"... !?", "🎉".encode(), b"\xef\xbb\xbf", b"\x00\x00"])
@pytest.mark.parametrize("arguments", [(), ("-",), ("-f", "-")])
def test_nothing_to_say_in_a_pipe_is_a_notice_and_exit_0_and_no_file(misoctl, tmp_path, data, arguments):
    done = misoctl("say", *arguments, "-o", str(tmp_path / "out.wav"), stdin=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"misoctl: nothing to say\n")
    assert list(tmp_path.iterdir()) == []
    assert misoctl("say", "-q", *arguments, stdin=data).stderr == b""


@pytest.mark.parametrize("source", [("-f", "x.txt"), ("-f", "-"), ("-f", "")])
def test_text_and_a_file_together_are_exit_2(misoctl, source):
    assert "not both" in usage(say(misoctl, "hi", *source))
    assert "not both" in usage(say(misoctl, "-", *source))


def test_a_file_that_is_not_there_or_a_directory_is_exit_66(misoctl, tmp_path):
    assert "none.txt: No such file" in one_line(say(misoctl, "-f", str(tmp_path / "none.txt")), errors.NO_INPUT)
    assert "Is a directory" in one_line(say(misoctl, "-f", str(tmp_path)), errors.NO_INPUT)


def test_bytes_that_are_not_utf8_are_exit_65_with_the_offset(misoctl, tmp_path):
    data = "é and ".encode() + b"\xff more"
    (tmp_path / "latin.txt").write_bytes(data)
    assert "standard input is not UTF-8: byte 7 is 0xff" in one_line(say(misoctl, stdin=data), errors.BAD_DATA)
    said = one_line(say(misoctl, "-f", str(tmp_path / "latin.txt")), errors.BAD_DATA)
    assert "latin.txt is not UTF-8: byte 7 is 0xff" in said
    assert "iconv" in said
    assert "byte 0 is 0xff" in one_line(say(misoctl, stdin="hi".encode("utf-16")), errors.BAD_DATA)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_arguments_that_are_not_utf8_are_exit_65_with_the_offset(misoctl, locale):
    environ = {"LC_ALL": locale, "PYTHONUTF8": "1"}
    said = one_line(say(misoctl, "é".encode(), b"\xe9t\xe9", env=environ), errors.BAD_DATA)
    assert "TEXT is not UTF-8: byte 3 is 0xe9" in said
    one_line(say(misoctl, b"\xff", env=environ), errors.BAD_DATA)


def test_a_text_of_the_limit_is_taken_and_one_byte_more_is_exit_65(misoctl, tmp_path):
    file = tmp_path / "long.txt"
    for text in ("a" * TEXT_LIMIT, "é" * (TEXT_LIMIT // 2)):
        file.write_text(text)
        one_line(say(misoctl, text), errors.UNAVAILABLE)
        one_line(say(misoctl, stdin=text.encode()), errors.UNAVAILABLE)
        one_line(say(misoctl, stdin=b"\xef\xbb\xbf" + text.encode()), errors.UNAVAILABLE)
        one_line(say(misoctl, "-f", str(file)), errors.UNAVAILABLE)
        file.write_text("b" + text)
        for done in (say(misoctl, "b" + text), say(misoctl, stdin=b"b" + text.encode()), say(misoctl, "-f", str(file))):
            assert f"{TEXT_LIMIT:,} bytes" in one_line(done, errors.BAD_DATA)


def test_an_endless_input_is_read_no_further_than_needed(misoctl):
    one_line(say(misoctl, "-f", "/dev/zero"), errors.BAD_DATA)


def test_a_nul_in_the_text_is_no_obstacle(misoctl):
    one_line(say(misoctl, stdin=b"hi\x00there"), errors.UNAVAILABLE)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_crash(home, closed):
    for arguments in ("say --no-start", "say --no-start hi", "say --no-start -o - hi", "status", "--help"):
        command = f"{sys.executable} -m misoctl {arguments} {closed}"
        done = subprocess.run(["sh", "-c", command], env=environ_of(home), capture_output=True, timeout=30, check=False)
        assert b"Traceback" not in done.stderr
        assert done.returncode in errors.EXIT_CODES
        assert done.returncode not in (errors.FAILED, errors.SOFTWARE)


# ---- where it goes


def test_json_and_the_speech_cannot_share_standard_output(misoctl):
    for arguments in (("-o", "-"), ("--raw",), ("--raw", "-o", "-")):
        # a daemon is looked for only after this
        assert "--json" in usage(misoctl("say", "hi", "--json", *arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "talk.m4a"), ".m4a is no format that miso writes; it has .wav, .flac, .ogg, .opus, .mp3, .raw"),
        (("-o", "talk.v2"), "or say which with --format"),
        (("--raw", "--format", "mp3", "-o", "talk"), "give one of them"),
        (("--format", "mp3"), "--format is for -o FILE"),
        (("-o", "-", "--format", "aiff"), "Invalid value for '--format'"),
    ],
)
def test_an_output_that_is_no_format_is_exit_2_before_anything_is_started(misoctl, home, tmp_path, arguments, said):
    line = usage(misoctl("say", "hi", *arguments, cwd=tmp_path, env={"PYTHONPATH": ROOT}))
    assert said in line and line.count("\n") == 1
    assert not home.exists() and list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_made_is_exit_73_before_anything_is_started(misoctl, home, tmp_path):
    for target in (tmp_path / "missing" / "out.wav", tmp_path):
        assert f"cannot write {target}" in one_line(misoctl("say", "hi", "-o", str(target)), errors.CANT_CREATE)
    assert not home.exists()


def test_stems_that_cannot_be_made_are_exit_73_before_anything_is_started(misoctl, home, tmp_path):
    script, taken, stems = tmp_path / "talk.txt", tmp_path / "taken", tmp_path / "turns" / "all"
    script.write_text("anna: Hello.")
    taken.write_text("")
    for target in (taken, taken / "below"):
        line = one_line(misoctl("say", "--script", str(script), "--stems", str(target)), errors.CANT_CREATE)
        assert f"cannot write to {target}: " in line and "another --stems" in line
    usage(misoctl("say", "--script", str(script), "--stems", str(stems), "--raw", "--json"))
    one_line(say(misoctl, "--script", str(script), "--stems", str(stems)), errors.UNAVAILABLE)
    assert not home.exists() and sorted(tmp_path.iterdir()) == [taken, script]


# ---- standard output that fails


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_a_full_disk_under_standard_output_is_one_line(misoctl, argument):
    with open("/dev/full", "wb") as full:
        done = misoctl(argument, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert one_line(done, errors.IO_ERROR) == "misoctl: standard output: No space left on device\n"


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_a_reader_that_goes_away_ends_it_without_a_word(home, argument):
    command = [sys.executable, "-m", "misoctl", argument]
    child = subprocess.Popen(command, env=environ_of(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(timeout=10) == -signal.SIGPIPE  # which a shell shows as 141


# ---- signals, versions, a daemon that goes


class Daemon(threading.Thread):
    """A ROUTER that answers each message with what `answers` makes of it. No answer, or a drain: it leaves at once."""

    def __init__(self, home: Path, answers):
        super().__init__(daemon=True)
        self.paths, self.answers, self.got = find_paths({"MISO_HOME": str(home)}), answers, []
        self.paths.run.mkdir(parents=True, mode=0o700)
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.bind(f"ipc://{self.paths.socket}")

    def run(self) -> None:
        while self.router.poll(20_000):
            peer, data = self.router.recv_multipart()
            self.got.append(codec.unpack(data, m.FROM_CLIENT))
            replies = self.answers(self.got[-1])
            if replies is None:
                break
            for reply in replies:
                self.router.send_multipart([peer, reply if isinstance(reply, bytes) else codec.pack(reply)])
            if isinstance(self.got[-1], m.Drain):
                break
        self.router.close(linger=1000)
        self.context.term()


def welcome(hello: m.Hello, minor: int = m.VERSION[1]) -> list[m.Message]:
    return [m.Welcome(id=hello.id, major=1, minor=minor, version="9.9.9", pid=4242, state="ready")]


def receipt(request: int, end: str = "eos", samples: int = 1920) -> m.Done:
    limits = m.Done.limits().items()
    least = {"str": "x", "bin": b""}
    made = {name: None if limit.optional else least.get(limit.kind, limit.low) for name, limit in limits}
    return m.Done(**made | {"id": request, "end": end, "samples": samples, "frames": samples // 1920, "seconds": 0.08})


def frame(request: int, seq: int = 0) -> m.Pcm:
    return m.Pcm(id=request, seq=seq, rate=24000, turn=0, data=bytes(3840))


def with_daemon(home, answers, *arguments, stdin=b""):
    daemon = Daemon(home, answers)
    daemon.start()
    command = [sys.executable, "-m", "misoctl", *arguments]
    done = subprocess.run(command, env=environ_of(home), input=stdin, capture_output=True, timeout=30, check=False)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    return done, daemon


def test_a_daemon_of_another_minor_version_is_warned_of_once(home, tmp_path):
    def answers(x):
        return welcome(x, minor=7) if isinstance(x, m.Hello) else [frame(x.id), receipt(x.id)]

    done, _ = with_daemon(home, answers, "say", "hi", "-o", str(tmp_path / "o.wav"))
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"misoctl: misod speaks protocol 1.7, misoctl 1.2: restart it soon\n"
    assert (tmp_path / "o.wav").stat().st_size == 44 + 3840


def test_a_daemon_of_another_major_version_is_exit_76_with_its_line(home):
    def answers(x):
        return [m.Error(id=x.id, code="version", message="misoctl speaks protocol 1.0, misod (pid 7) 2.0")]

    done, _ = with_daemon(home, answers, "status")
    line = one_line(done, errors.VERSION_SKEW)
    assert "1.0" in line
    assert "2.0" in line
    assert "misoctl stop" in line


def test_unload_of_a_daemon_that_is_stopping_starts_no_other(home):
    def answers(x):
        return [m.Welcome(id=x.id, major=1, minor=m.VERSION[1], version="9", pid=4242, state="draining")]

    done, daemon = with_daemon(home, answers, "unload")
    assert (done.returncode, done.stderr) == (0, b"misoctl: no model is loaded\n")
    assert [type(x) for x in daemon.got] == [m.Hello]


def test_stop_ends_a_daemon_that_speaks_another_version(home):
    """Its cure for version skew is `misoctl stop`: so that must need no common version."""
    code = """if 1:
        import fcntl, os, sys, time
        from pathlib import Path
        lock = open(sys.argv[1], "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid())); lock.flush()
        Path(sys.argv[1] + ".up").touch()
        time.sleep(60)
    """

    def answers(x):
        return [m.Error(id=x.id, code="version", message="2.0")]

    daemon = Daemon(home, answers)
    holder = subprocess.Popen([sys.executable, "-c", code, daemon.paths.lock])
    while not Path(f"{daemon.paths.lock}.up").exists():
        time.sleep(0.01)
    daemon.start()
    command = [sys.executable, "-m", "misoctl", "stop"]
    done = subprocess.run(command, env=environ_of(home), capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, f"misoctl: misod stopped, pid {holder.pid}\n")
    assert holder.wait(timeout=10) == -signal.SIGTERM


def test_a_daemon_that_goes_while_we_listen_is_exit_69_and_the_file_has_what_came(home, tmp_path):
    def answers(x):
        if isinstance(x, m.Ack):
            return None
        return welcome(x) if isinstance(x, m.Hello) else [frame(x.id, n) for n in range(16)]

    done, _ = with_daemon(home, answers, "say", "hi", "-o", str(tmp_path / "o.wav"))
    assert "the connection to misod was lost" in one_line(done, errors.UNAVAILABLE)
    assert (tmp_path / "o.wav").stat().st_size == 44 + 16 * 3840
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "o.wav"]


@pytest.mark.parametrize("junk", [b"", b"\xc1", msgpack.packb({"t": "shout", "id": 1}), msgpack.packb([1] * 10)])
def test_a_daemon_that_sends_junk_is_one_line(home, junk):
    done, _ = with_daemon(home, lambda _: [junk], "status")
    assert "misod sent what this misoctl cannot read" in one_line(done, errors.SOFTWARE)


def test_an_error_that_names_no_request_ends_the_wait(home):
    def answers(x):
        return welcome(x) if isinstance(x, m.Hello) else [m.Error(id=None, code="bad_message", message="what?")]

    done, _ = with_daemon(home, answers, "say", "hi", "--raw")
    assert "what?" in one_line(done, errors.SOFTWARE)


@pytest.mark.parametrize("code", errors.ERRORS)
def test_each_error_has_its_exit_code_and_its_next_step(home, code):
    def answers(x):
        return welcome(x) if isinstance(x, m.Hello) else [m.Error(id=x.id, code=code, message="so it is")]

    done, _ = with_daemon(home, answers, "say", "hi", "--raw")
    entry = errors.ERRORS[code]
    assert one_line(done, entry.exit_code) == f"misoctl: so it is; {entry.next_step}\n"


@pytest.mark.parametrize(
    ("end", "samples", "code"),
    [
        ("eos", 1920, 0),
        ("cap", 1920, 0),
        ("cancelled", 1920, 1),
        ("drained", 1920, 1),
        ("eos", 0, 1),
        ("new word", 1920, 1),
    ],
)
def test_the_end_reason_decides_the_exit_code_and_json_comes_in_any_case(home, tmp_path, end, samples, code):
    def answers(x):
        frames = [frame(x.id)] if samples else []
        return welcome(x) if isinstance(x, m.Hello) else [*frames, receipt(x.id, end, samples)]

    done, _ = with_daemon(home, answers, "say", "hi", "--json", "-o", str(tmp_path / "o.wav"))
    assert done.returncode == code
    assert json.loads(done.stdout)["end"] == end
    assert (tmp_path / "o.wav").exists() == bool(samples)
    assert bool(done.stderr) == (code != 0 or end == "cap")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_keeps_what_was_said_and_is_128_and_its_number(home, tmp_path, number):
    def answers(x):
        if isinstance(x, m.Cancel):
            return None
        return (
            welcome(x)
            if isinstance(x, m.Hello)
            else [frame(x.id, n) for n in range(16)]
            if isinstance(x, m.Say)
            else []
        )

    daemon = Daemon(home, answers)
    daemon.start()
    child = subprocess.Popen(
        [sys.executable, "-m", "misoctl", "say", "hi", "-o", tmp_path / "o.wav"],
        env=environ_of(home),
        stderr=subprocess.PIPE,
    )
    while not any(isinstance(x, m.Ack) for x in daemon.got):
        time.sleep(0.01)
    child.send_signal(number)
    assert child.stderr.read() == b""
    assert child.wait(timeout=10) == 128 + number
    daemon.join(timeout=10)
    assert isinstance(daemon.got[-1], m.Cancel)
    assert (tmp_path / "o.wav").stat().st_size == 44 + 16 * 3840
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "o.wav"]


def test_what_nohup_ignores_stays_ignored(home, tmp_path):
    def answers(x):
        if isinstance(x, m.Ack):
            os.kill(child.pid, signal.SIGHUP)
            return [receipt(x.id, samples=16 * 1920)]
        return welcome(x) if isinstance(x, m.Hello) else [frame(x.id, n) for n in range(16)]

    daemon = Daemon(home, answers)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    child = subprocess.Popen(
        [sys.executable, "-m", "misoctl", "say", "hi", "-o", tmp_path / "o.wav"],
        env=environ_of(home),
    )
    signal.signal(signal.SIGHUP, before)
    daemon.start()
    assert child.wait(timeout=20) == 0


def test_an_answer_sent_just_before_the_daemon_closes_is_heard(home):
    """`misoctl stop` of an idle daemon said "the connection was lost" three times in four: RECONNECT_IVL was -1."""
    code = """if 1:
        from protocol.paths import find_paths
        from misoctl.client import Client
        with Client(find_paths()) as client:
            client.drain()
    """
    for n in range(8):
        status = {name: "x" if limit.kind == "str" else max(1, limit.low) for name, limit in m.Status.limits().items()}

        def answers(x, status=status):
            return welcome(x) if isinstance(x, m.Hello) else [m.Status(**status | {"id": x.id})]

        daemon = Daemon(home / str(n), answers)
        daemon.start()
        child = subprocess.run(
            [sys.executable, "-c", code], env=environ_of(home / str(n)), capture_output=True, timeout=20, check=False
        )
        assert child.returncode == 0, child.stderr
