"""Graphs of compiled frames: made while nobody speaks, and told in status."""

import json
from pathlib import Path

from fake_misod import FakeEngine
from harness import Raw, until

from misod.engine import Models, Say
from misod.orders import Admitted, Crashed, Submit
from misod.worker import Worker
from protocol import messages as m


def test_status_tells_how_many_graphs_were_made_and_in_what_time(home):
    home.env["FAKE_GRAPHS"] = "3"
    home.fake()
    with Raw(home) as raw:
        until(lambda: raw.ping().backend == "none, 3 graphs in 1.5 s", "all three to be told")
    assert "on none, 3 graphs in 1.5 s, loaded in" in home.misoctl("status").stdout
    assert json.loads(home.misoctl("status", "--json").stdout)["backend"] == "none, 3 graphs in 1.5 s"


def test_where_nothing_is_compiled_status_says_nothing_of_graphs(fake):
    assert json.loads(fake.misoctl("status", "--json").stdout)["backend"] == "none"


def test_none_is_made_while_a_row_speaks_and_the_rest_after_it(home):
    home.env["FAKE_GRAPHS"] = "100000"
    home.fake()
    with Raw(home) as raw:
        until(lambda: home.traced("graph") > 2, "some to be made")
        raw.say(1, "last 10")
        assert raw.until(m.Done)[-1].end == "eos"
        after = home.traced("graph")
        until(lambda: home.traced("graph") > after, "more to be made")
    lines = [line.split()[0] for line in home.trace.read_text().splitlines()]
    spoke = lines[lines.index("prefill") : lines.index("release")]
    assert spoke.count("frame") == 10 and "graph" not in spoke


def test_an_order_that_comes_while_one_is_made_is_served_before_the_next():
    class Making(FakeEngine):
        def prepare(self) -> bool:
            done.append("graph")
            if done == ["graph"] * 3:
                worker.inbox.put(Submit((b"", 1), Say("two words", seed=1)))
            if "prefill" in done:
                raise RuntimeError("seen enough")
            return True

        def prefill(self, say):
            done.append("prefill")
            return super().prefill(say)

    done: list[str] = []
    models = Models(lambda _: Path("nano"), lambda _: Making("nano", 2), lambda: 0)
    worker = Worker(models, 2, 60.0, lambda: None)
    worker.run()  # on this thread: it ends with what prepare raises
    assert done == ["graph", "graph", "graph", "prefill", "graph"]
    assert any(isinstance(event, Admitted) for event in worker.outbox) and isinstance(worker.outbox[-1], Crashed)
