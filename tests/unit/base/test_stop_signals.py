"""Signals that stop a process in order: SIGHUP is one of them, unless `nohup` has turned it off."""

from __future__ import annotations

import os
import signal

from service.base.stop_signals import handlers_given_back, receive_stops, stops_received


def test_each_stopping_signal_is_received_and_afterwards_the_handlers_are_as_before() -> None:
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    received: list[signal.Signals] = []
    with handlers_given_back():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
        with stops_received(received.append):
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
    assert received == [signal.SIGHUP, signal.SIGTERM, signal.SIGINT]
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


def test_a_hangup_that_is_ignored_from_the_start_stays_ignored() -> None:
    received: list[signal.Signals] = []
    with handlers_given_back():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        receive_stops(received.append)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGTERM]
