"""A step of `AclSet.allows_any` counts names, not the prefixes looked at for each."""
import time
from uuid import UUID
import pytest
from service.security.acls import AclEntry, AclSet
from service.security.operations import AclOperation as O, AclPermissionType as P, AclResourceType as R, PatternType as T

@pytest.mark.parametrize("longest", [249, 1000])
def test_no_step_of_the_question_holds_the_loop(longest):
    made = [AclEntry(R.TOPIC, ("a" if n == longest else "b") * n, T.PREFIXED, "User:u", "*", O.WRITE, P.DENY) for n in range(1, longest + 1)]
    made += [AclEntry(R.TOPIC, "a" * longest + str(i), T.LITERAL, "User:u", "*", O.WRITE, P.ALLOW) for i in range(1000)]
    acls = AclSet.EMPTY.with_entries({UUID(int=i + 1): e for i, e in enumerate(made)}, ())
    steps, worst = acls.allows_any(R.TOPIC, O.WRITE, "User:u", "10.0.0.1"), 0.0
    while True:
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration as e:
            assert e.value is False
            worst = max(worst, time.thread_time() - began)
            break
        worst = max(worst, time.thread_time() - began)
    assert worst <= 0.002, f"one step took {worst * 1e3:.1f} ms"
