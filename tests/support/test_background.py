import sys
import threading
import time
from threading import get_ident

import pytest

from tilewright.support.background import SWITCH_SECONDS, Background


def test_jobs_run_in_order_in_one_other_thread():
    done = []
    with Background(cpus=2) as background:
        later = [background.submit(lambda k=k: (done.append(k), get_ident())[1]) for k in range(20)]
        threads = {each() for each in later}
    assert done == list(range(20))
    assert len(threads) == 1
    assert get_ident() not in threads


@pytest.mark.parametrize("cpus", [0.5, 1])
def test_with_one_cpu_a_job_is_done_when_it_is_submitted(cpus):
    with Background(cpus=cpus) as background:
        done = []
        later = background.submit(lambda: done.append(get_ident()))
        assert done == [get_ident()]
        assert later() is None


def test_where_no_thread_is_to_be_had_a_job_is_done_when_it_is_submitted(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with Background(cpus=2) as background, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert background.submit(get_ident)() == get_ident()
        patch.undo()
        assert background.submit(get_ident)() != get_ident()


@pytest.mark.parametrize("cpus", [1, 2])
def test_an_error_is_raised_where_the_result_is_asked_for(cpus):
    with Background(cpus=cpus) as background:
        bad, good = background.submit(lambda: 1 // 0), background.submit(lambda: 7)
        assert good() == 7
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                bad()


def test_leaving_the_block_drops_what_was_not_begun_and_ends_the_thread():
    started, go, done = threading.Event(), threading.Event(), []

    def first():
        started.set()
        go.wait(10)
        done.append("first")

    before = threading.active_count()
    with pytest.raises(KeyError), Background(cpus=2) as background:
        background.submit(first)
        dropped = background.submit(lambda: done.append("second"))
        started.wait(10)
        threading.Timer(0.05, go.set).start()
        raise KeyError
    assert done == ["first"]
    with pytest.raises(RuntimeError, match="block"):
        dropped()
    while threading.active_count() > before:  # the timer's thread ends by itself
        time.sleep(0.01)


def test_the_interpreter_has_its_own_setting_back_when_the_last_block_is_left():
    before = sys.getswitchinterval()
    outer, inner = Background(cpus=2), Background(cpus=2)
    outer.__enter__()
    with inner:
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    outer.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(before)
    with Background(cpus=1):
        assert sys.getswitchinterval() == pytest.approx(before)
