"""Who may be heard now: each policy, priorities, interruption, sameness, time; what always holds, by random walks."""

import random

import pytest

from misod.floor import HOLD_S, STOP_S, Floor, Turn

SAME_S = 5.0
PLAYS = ("speaks", "stops")


class Room:
    """A floor, clients that are called by letters, and what each was told last."""

    def __init__(self):
        self.floor, self.now_s, self.said = Floor(SAME_S), 1000.0, {}

    def told(self, words) -> list[str]:
        self.said |= {name.decode(): word for (name, _), word in words}
        return [f"{name.decode()} {word}" for (name, _), word in words]

    def ask(self, name: str, when: str = "queue", priority: int = 1, **wish) -> list[str]:
        turn = Turn((name.encode(), 1), self.now_s, when, priority, **wish)
        return self.told(self.floor.ask(turn, self.now_s))

    def leave(self, name: str, again: bool = False) -> list[str]:
        return self.told(self.floor.leave((name.encode(), 1), again, self.now_s))

    def gone(self, *names: str) -> list[str]:
        return self.told(self.floor.gone([(name.encode(), 1) for name in names], self.now_s))

    def hold(self, name: str, seconds: float) -> None:
        self.floor.hold((name.encode(), 1), seconds, self.now_s)

    def hush(self) -> list[str]:
        return self.told(self.floor.hush(self.now_s))

    def after(self, seconds: float) -> list[str]:
        self.now_s += seconds
        return self.told(self.floor.tick(self.now_s))

    def now(self) -> str:
        return ", ".join(f"{turn.key[0].decode()} {state}" for turn, state in self.floor.states())


@pytest.fixture
def room() -> Room:
    return Room()


# ---- queue


def test_the_first_has_the_floor_and_the_next_get_it_in_turn(room):
    assert room.ask("a") == ["a yours"]
    assert room.ask("b") + room.ask("c") == ["b floor", "c floor"]
    assert room.leave("a") == ["b yours"]
    assert room.leave("b") == ["c yours"]
    assert room.leave("c") == [] and room.now() == ""


def test_the_higher_priority_goes_first_then_who_asked_first(room):
    for name, priority in zip("abcde", (1, 0, 2, 1, 2), strict=True):
        room.ask(name, priority=priority)
    assert room.now() == "a speaks, c waits, e waits, d waits, b waits"
    assert [room.leave(name) for name in "aced"] == [["c yours"], ["e yours"], ["d yours"], ["b yours"]]


def test_who_leaves_the_queue_is_out_of_it(room):
    room.ask("a"), room.ask("b"), room.ask("c")
    assert room.leave("b") == [] and room.leave("a") == ["c yours"]


# ---- interrupt


def test_an_alert_is_heard_once_the_interrupted_is_silent_and_not_before(room):
    room.ask("a"), room.ask("b")
    assert room.ask("x", "interrupt") == ["x floor", "a cut"]
    assert room.now() == "a stops, x waits, b waits"
    assert room.leave("a") == ["x yours"]
    assert room.leave("x") == ["b yours"]


def test_an_alert_for_which_all_is_to_go_on_pauses(room):
    room.ask("a"), room.ask("b")
    assert room.ask("x", "interrupt", resume=True) == ["x floor", "a paused"]
    assert room.leave("a", again=True) == ["a floor", "x yours"]
    assert room.leave("x") == ["a yours"]  # in its old place, before b
    assert room.leave("a") == ["b yours"]


def test_who_wants_to_go_on_may_after_any_interruption(room):
    room.ask("a"), room.ask("x", "interrupt")
    assert room.leave("a", again=True) == ["a floor", "x yours"]
    assert room.leave("x") == ["a yours"]


def test_a_lower_priority_interrupts_nobody_and_waits(room):
    room.ask("a", priority=2)
    assert room.ask("x", "interrupt") == ["x floor"]
    assert room.now() == "a speaks, x waits"


def test_a_second_alert_that_comes_while_the_first_waits_for_silence_is_next(room):
    room.ask("a"), room.ask("b", priority=2), room.ask("x", "interrupt")
    assert room.ask("y", "interrupt") == ["y floor"]
    assert room.leave("a") == ["x yours"]
    assert room.leave("x") == ["y yours"]
    assert room.leave("y") == ["b yours"]


def test_an_alert_is_interrupted_by_the_next_and_may_go_on_too(room):
    room.ask("a"), room.ask("x", "interrupt"), room.leave("a", again=True)
    assert room.ask("y", "interrupt") == ["y floor", "x cut"]
    assert room.leave("x", again=True) == ["x floor", "y yours"]
    assert room.leave("y") == ["a yours"]  # as before: a asked first


def test_a_player_that_ends_as_it_is_cut_is_no_trouble(room):
    room.ask("a"), room.ask("x", "interrupt")
    assert room.leave("a") == ["x yours"]


# ---- drop, overlap


@pytest.mark.parametrize(("priority", "word"), [(0, "dropped"), (1, "dropped"), (2, "floor")])
def test_drop_says_nothing_where_one_of_its_priority_or_a_higher_speaks(room, priority, word):
    room.ask("a")
    assert room.ask("x", "drop", priority) == [f"x {word}"]


def test_drop_looks_at_who_waits_too(room):
    room.ask("a", priority=0), room.ask("b", priority=2)
    assert room.ask("x", "drop", 1) == ["x dropped"]


def test_drop_speaks_on_a_free_floor(room):
    assert room.ask("x", "drop", 0) == ["x yours"]


def test_overlap_plays_beside_and_holds_nobody_up(room):
    room.ask("a")
    assert room.ask("x", "overlap") == ["x yours"]
    assert room.now() == "a speaks, x beside"
    assert room.leave("a") == [] and room.ask("b") == ["b yours"]
    assert room.leave("x") == [] and room.now() == "b speaks"


# ---- the same, again


def test_the_same_of_one_app_is_said_once_within_the_window(room):
    room.ask("a", app="ci", text_digest="1")
    assert room.ask("b", app="ci", text_digest="1") == ["b same"]  # it is heard now
    room.leave("a")
    room.after(SAME_S - 0.1)
    assert room.ask("c", app="ci", text_digest="1") == ["c same"]  # it was
    room.after(0.1)
    assert room.ask("d", app="ci", text_digest="1") == ["d yours"]


@pytest.mark.parametrize("other", [{"app": "", "text_digest": "1"}, {"app": "mail", "text_digest": "1"},
                                   {"app": "ci", "text_digest": "2"}, {"app": "ci", "text_digest": ""}])  # fmt: skip
def test_another_app_or_text_is_not_the_same(room, other):
    room.ask("a", app="ci", text_digest="1")
    assert room.ask("b", **other) == ["b floor"]


def test_the_same_of_nobody_is_said_again(room):
    room.ask("a", text_digest="1")
    assert room.ask("b", text_digest="1") == ["b floor"]


def test_what_waits_is_the_same_but_swallows_no_more_urgent_one(room):
    same = {"app": "ci", "text_digest": "1"}
    room.ask("a"), room.ask("b", **same)
    assert room.ask("c", **same) == ["c same"]
    assert room.ask("d", priority=2, **same) == ["d floor"]
    assert room.ask("e", "interrupt", **same) == ["e floor", "a cut"]
    assert room.leave("a") == ["e yours"]
    assert room.leave("e") == ["d same", "b same"] and room.now() == ""  # it was said


def test_what_was_not_heard_to_its_end_may_be_said_again(room):
    same = {"app": "ci", "text_digest": "1"}
    room.ask("a", **same), room.gone("a")
    assert room.ask("b", **same) == ["b yours"]
    room.ask("x", "interrupt"), room.leave("b"), room.leave("x")
    assert room.ask("c", **same) == ["c yours"]
    room.hush(), room.leave("c")
    assert room.ask("d", **same) == ["d yours"]


def test_overlapping_ones_are_the_same_too(room):
    same = {"app": "ci", "text_digest": "1"}
    room.ask("a", "overlap", **same)
    assert room.ask("b", "overlap", **same) == ["b same"]
    room.leave("a")
    assert room.ask("c", **same) == ["c same"]


# ---- hush


def test_hush_stops_all_and_the_next_waits_for_silence(room):
    room.ask("a"), room.ask("b"), room.ask("o", "overlap")
    assert room.hush() == ["a hushed", "o hushed", "b hushed"]
    assert room.now() == "a stops"
    assert room.ask("c") == ["c floor"]
    assert room.leave("a") == ["c yours"]


def test_who_was_paused_and_then_hushed_does_not_go_on(room):
    room.ask("a"), room.ask("x", "interrupt", resume=True)
    assert room.hush() == ["x hushed"]
    assert room.leave("a", again=True) == ["a hushed"] and room.now() == ""


def test_hush_of_nobody_says_nothing(room):
    assert room.hush() == []


# ---- time, and clients that die


def test_a_holder_that_says_no_word_is_told_to_stop_and_then_taken_for_dead(room):
    room.ask("a"), room.ask("b")
    assert room.after(HOLD_S - 0.1) == []
    assert room.after(0.1) == ["a late"]
    assert room.after(STOP_S - 0.1) == []
    assert room.after(0.1) == ["b yours"]
    assert room.leave("a") == [] and room.now() == "b speaks"


def test_a_holder_may_ask_for_more_time_but_not_once_it_was_told_to_stop(room):
    room.ask("a"), room.ask("b")
    room.after(HOLD_S - 0.1)
    room.hold("a", 60), room.hold("b", 600)
    assert room.floor.next_deadline_s() == room.now_s + 60
    assert room.after(59.9) == [] and room.ask("x", "interrupt") == ["x floor", "a cut"]
    room.hold("a", 60)
    assert room.after(STOP_S) == ["x yours"]


def test_a_free_floor_has_no_deadline(room):
    room.ask("a"), room.leave("a"), room.ask("o", "overlap")
    assert room.floor.next_deadline_s() is None


@pytest.mark.parametrize("stopped", [False, True])
def test_a_holder_that_dies_frees_the_floor(room, stopped):
    room.ask("a"), room.ask("b")
    if stopped:
        room.ask("x", "interrupt")
    assert room.gone("a") == ["x yours" if stopped else "b yours"]


def test_they_die_together_and_in_any_place(room):
    room.ask("a"), room.ask("b"), room.ask("o", "overlap"), room.ask("c")
    assert room.gone("a", "b", "o") == ["c yours"]
    assert room.gone("nobody") == [] and room.now() == "c speaks"


# ---- always


def do_something(room: Room, rng: random.Random, names: list[str]) -> None:
    states = {turn.key[0].decode(): state for turn, state in room.floor.states()}
    match rng.choice(["ask"] * 5 + ["leave"] * 4 + ["obey"] * 4 + ["gone", "hush", "late", "hold"]):
        case "ask":
            names.append(name := f"n{len(names)}")
            wish = {"app": rng.choice(["", "p"]), "text_digest": rng.choice("123"), "resume": rng.random() < 0.5}
            room.ask(name, rng.choice(["queue", "queue", "interrupt", "drop", "overlap"]), rng.randrange(3), **wish)
        case "leave" | "gone" as act if states:
            name = rng.choice(list(states))
            getattr(room, act)(name)
            room.said[name] = "left" if name not in {t.key[0].decode() for t, _ in room.floor.states()} else "floor"
        case "obey":
            for name in [name for name, state in states.items() if state == "stops"]:
                again = room.said[name] in ("cut", "paused") and rng.random() < 0.5
                room.said[name] = "left" if not again else room.said[name]
                room.leave(name, again)
        case "hush" if rng.random() < 0.2:
            room.hush()
        case "hold" if states:
            room.hold(rng.choice(list(states)), rng.uniform(0, 20))
        case "late":
            room.after(rng.choice([0.5, STOP_S, HOLD_S]))


@pytest.mark.parametrize("seed", range(60))
def test_never_two_hold_it_nobody_is_lost_and_the_order_holds(room, seed):
    rng, names = random.Random(seed), []
    for _ in range(200):
        do_something(room, rng, names)
        states = room.floor.states()
        at = {turn.key[0].decode(): state for turn, state in states}
        assert len(at) == len(states)  # each in one place
        assert sum(state in PLAYS for state in at.values()) <= 1
        assert any(state in PLAYS for state in at.values()) or "waits" not in at.values()  # free: nobody waits
        for name, state in at.items():  # what it is and what it was told agree
            allowed = {"speaks": ["yours"], "beside": ["yours"], "waits": ["floor"]}
            assert room.said[name] in allowed.get(state, ["cut", "paused", "hushed", "late"]), (name, state)
        waiting = [turn for turn, state in states if state == "waits"]
        assert [t.serial for t in waiting] == [t.serial for t in sorted(waiting, key=lambda t: t.rank)]
        for name in names:  # who is in no place was told so, or left
            assert name in at or room.said[name] in ("same", "dropped", "hushed", "left", "cut", "paused", "late")
    for _ in range(10 * len(names)):  # and all come to an end
        if not room.floor.states():
            break
        for turn, state in room.floor.states():
            if state != "waits":
                room.leave(turn.key[0].decode())
    assert room.floor.states() == []
