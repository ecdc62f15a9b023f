"""The release that is running: version, commit and kind of kernels."""

from __future__ import annotations

import re

from service.base.release import Release, release


def test_a_checkout_knows_its_commit() -> None:
    found = release()
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", found.commit)
    assert found.kernels in ("compiled", "interpreted")


def test_the_words_of_a_release_name_commit_and_kernels() -> None:
    assert str(Release("1.2.3", "", "interpreted")) == "firn 1.2.3 (commit unknown, kernels interpreted)"
