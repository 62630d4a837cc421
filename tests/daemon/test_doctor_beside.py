"""misoctl doctor beside a daemon: it sees it, and the daemon does not notice."""

import json

from harness import Raw


def daemon_line(home) -> str:
    found = {each["name"]: each for each in json.loads(home.misoctl("doctor", "--json").stdout)}
    assert found["socket"]["state"] == "ok"
    return f"{found['daemon']['state']} {found['daemon']['detail']}"


def test_it_names_the_daemon_that_runs_and_one_that_was_killed(fake):
    before = fake.log.read_text()
    assert daemon_line(fake).startswith(f"ok running, pid {fake.daemon.pid}, up ")
    with Raw(fake) as raw:
        assert raw.ping().state == "ready"
    assert fake.log.read_text() == before
    fake.daemon.kill()
    fake.daemon.wait()
    assert daemon_line(fake).startswith("ok not running")  # lock and socket of the killed one are still there
    assert fake.socket.exists()
