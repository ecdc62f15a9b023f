"""Lines of Spark's errors that a user sees."""

from __future__ import annotations

from service.pipelines.failure import failure_of

CHAINED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted:
Task 0 failed 4 times, most recent failure: org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "a.py", line 1, in f
obstore.exceptions.GenericError: Generic S3 error: connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 1, in g
service.remote.stores.errors.StoreUnavailable: GET data/x.seg: the store did not answer

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
"""


def test_the_error_is_the_outermost_and_its_cause_the_first() -> None:
    found = failure_of(CHAINED + "JVM stacktrace:\n" + CHAINED)
    assert found.error == "GET data/x.seg: the store did not answer"
    assert found.cause == "GenericError: Generic S3 error: connection refused"


def test_the_failure_of_another_attempt_is_no_cause() -> None:
    one = "Traceback (most recent call last):\nValueError: first\n"
    two = "Traceback (most recent call last):\nservice.base.errors.CorruptionError: second\n"
    assert failure_of(one + two) == ("second", "")


def test_a_java_error_is_shown_by_its_first_line_and_last_cause() -> None:
    text = "[WRITE] Cannot write\n\nJVM stacktrace:\norg.x.Failed: Cannot write\n\tat x\n"
    text += "Caused by: org.x.Middle: in between\nCaused by: java.io.IOException: No space left on device\n"
    assert failure_of(text) == ("[WRITE] Cannot write", "IOException: No space left on device")


def test_a_cause_that_the_error_has_told_is_not_told_twice() -> None:
    assert failure_of("Cannot write: disk is full\nCaused by: x.Y: disk is full\n").cause == ""
    assert failure_of("") == ("", "")
