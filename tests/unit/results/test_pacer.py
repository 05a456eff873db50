from dsf.results.together import Pacer


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _waits(pace: Pacer, clock: _Clock, steps: int) -> list[float]:
    """What each of these steps waits for, with the next one ready at once."""
    waits = []
    for _ in range(steps):
        wait = max(0.0, pace.left())
        clock.now += wait
        waits.append(round(wait, 6))
        pace.step()
    return waits


def test_some_steps_at_once_then_one_per_interval() -> None:
    clock = _Clock()
    assert _waits(Pacer(0.25, 2, clock), clock, 6) == [0, 0, 0, 0.25, 0.25, 0.25]


def test_a_pause_earns_as_many_steps_as_it_has_intervals() -> None:
    clock = _Clock()
    pace = Pacer(0.25, 2, clock)
    _waits(pace, clock, 5)
    clock.now += 0.5
    assert _waits(pace, clock, 4) == [0, 0, 0.25, 0.25]
    clock.now += 1000
    assert _waits(pace, clock, 4) == [0, 0, 0, 0.25]


def test_steps_that_did_not_wait_delay_the_next_one_by_one_interval_at_most() -> None:
    clock = _Clock()
    pace = Pacer(0.25, 2, clock)
    for _ in range(1000):
        pace.step()
    assert pace.left() == 0.25


def test_without_burst_each_step_waits_for_the_one_before() -> None:
    clock = _Clock()
    assert _waits(Pacer(0.25, 0, clock), clock, 3) == [0, 0.25, 0.25]
