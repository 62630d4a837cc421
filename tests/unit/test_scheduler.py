"""Who speaks now: order of admission, credit, parking, removal. No clock, no socket, no model."""

import pytest

from misod.engine import Row, Say
from misod.scheduler import Job, Scheduler
from protocol.messages import WINDOW_FRAMES


def job(n: int) -> Job:
    return Job((b"peer", n), Say(text="x", seed=n))


def prefill(j: Job) -> Job:
    j.row = Row(j.say, 0.5, 10)
    return j


def speaking(count: int, max_rows: int = 8) -> tuple[Scheduler, list[Job]]:
    scheduler, jobs = Scheduler(max_rows), [job(n) for n in range(count)]
    for each in jobs:
        scheduler.submit(each)
        prefill(scheduler.admit())
    return scheduler, jobs


def test_an_empty_scheduler_has_nothing_to_do():
    scheduler = Scheduler(2)
    assert scheduler.empty
    assert scheduler.head() is None and scheduler.waiting() == []
    assert scheduler.admit() is None
    assert scheduler.ready() == []
    assert scheduler.counts() == (0, 0, 0)
    assert scheduler.remove((b"peer", 1)) is None


def test_jobs_are_admitted_in_the_order_they_came_and_at_most_max_rows():
    scheduler, jobs = Scheduler(2), [job(n) for n in range(4)]
    for each in jobs:
        scheduler.submit(each)
    assert scheduler.head() is jobs[0] and scheduler.waiting() == jobs
    assert [scheduler.admit(), scheduler.admit(), scheduler.admit()] == [jobs[0], jobs[1], None]
    assert scheduler.counts()[0] == 2
    scheduler.remove(jobs[0].key)
    assert scheduler.admit() is jobs[2]
    assert scheduler.admit() is None


def test_a_job_takes_no_step_before_it_is_prefilled():
    scheduler = Scheduler(2)
    scheduler.submit(job(0))
    admitted = scheduler.admit()
    assert scheduler.ready() == []
    prefill(admitted)
    assert scheduler.ready() == [admitted]


def test_rows_step_in_the_order_they_came_whoever_leaves():
    scheduler, jobs = speaking(4)
    assert scheduler.ready() == jobs
    scheduler.remove(jobs[1].key)
    scheduler.submit(late := job(9))
    prefill(scheduler.admit())
    assert scheduler.ready() == [jobs[0], jobs[2], jobs[3], late]


def test_a_row_that_has_sent_its_window_is_parked_until_it_gets_credit():
    scheduler, (a, b) = speaking(2)
    for _ in range(WINDOW_FRAMES):
        assert scheduler.ready() == [a, b]
        scheduler.sent(a)
    assert a.parked
    assert scheduler.ready() == [b]
    assert scheduler.counts() == (0, 1, 1)
    scheduler.credit(a.key, 1)
    assert scheduler.ready() == [a, b]
    scheduler.sent(a)
    assert scheduler.ready() == [b]


def test_only_parked_rows_leave_nothing_to_do_but_are_not_empty():
    scheduler, (a,) = speaking(1, max_rows=1)
    for _ in range(WINDOW_FRAMES):
        scheduler.sent(a)
    scheduler.submit(job(5))
    assert scheduler.speaks and not scheduler.has_room and scheduler.ready() == []
    assert not scheduler.empty
    scheduler.remove(a.key)
    assert scheduler.has_room and not scheduler.speaks


def test_a_parked_row_keeps_its_place():
    scheduler, (a,) = speaking(1, max_rows=1)
    for _ in range(WINDOW_FRAMES):
        scheduler.sent(a)
    scheduler.submit(job(5))
    assert scheduler.admit() is None


def test_a_frame_that_is_sent_takes_credit():
    scheduler, (a,) = speaking(1)
    scheduler.sent(a)
    scheduler.sent(a)
    assert a.credit == WINDOW_FRAMES - 2


def test_a_job_that_is_over_takes_no_step_and_keeps_its_row_while_frames_are_held():
    scheduler, (a,) = speaking(1)
    a.end = "eos"
    a.held.append("a frame")
    assert scheduler.ready() == [] and scheduler.speaks
    assert scheduler.credit(a.key, 3) is a and scheduler.credit((b"other", 0, 0), 3) is None


def test_a_queued_job_can_be_removed_and_the_others_stay():
    scheduler, jobs = Scheduler(1), [job(n) for n in range(4)]
    for each in jobs:
        scheduler.submit(each)
    scheduler.admit()
    assert scheduler.remove(jobs[2].key) is jobs[2]
    assert scheduler.remove(jobs[2].key) is None
    assert scheduler.counts()[0] == 2
    assert scheduler.remove(jobs[0].key) is jobs[0]
    assert scheduler.admit() is jobs[1]


def test_credit_for_a_job_that_left_is_ignored():
    scheduler, (a,) = speaking(1)
    scheduler.remove(a.key)
    scheduler.credit(a.key, 5)
    assert scheduler.empty
    assert a.credit == WINDOW_FRAMES


def test_equal_ids_of_two_clients_are_two_jobs():
    scheduler = Scheduler(4)
    jobs = [Job((peer, 1), Say(text="x", seed=1)) for peer in (b"one", b"two")]
    for each in jobs:
        scheduler.submit(each)
        prefill(scheduler.admit())
    assert scheduler.remove((b"one", 1)) is jobs[0]
    assert scheduler.ready() == [jobs[1]]


@pytest.mark.parametrize("max_rows", [1, 3, 8])
def test_counts_add_up_through_a_whole_life(max_rows):
    scheduler = Scheduler(max_rows)
    for n in range(10):
        scheduler.submit(job(n))
    left = 10
    while not scheduler.empty:
        while admitted := scheduler.admit():
            prefill(admitted)
        queued, now_speaking, parked = scheduler.counts()
        assert queued + now_speaking + parked == left
        assert now_speaking + parked == min(max_rows, left)
        scheduler.remove(scheduler.ready()[0].key)
        left -= 1
    assert left == 0


def test_what_is_due_is_of_rows_that_may_speak_the_first_first():
    scheduler, jobs = speaking(3)
    assert scheduler.due() is None
    jobs[1].row.due = jobs[2].row.due = print
    assert scheduler.due() is jobs[1]
    jobs[1].credit = 0  # parked
    assert scheduler.due() is jobs[2]
