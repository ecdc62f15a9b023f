"""Rights of one client on topics that a request names by their ids. [P]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.image import MetadataImage


class TopicRights(NamedTuple):
    """Questions whether the client may delete, read or describe a topic; None: there is no authorizer."""

    delete: Callable[[str], bool] | None = None
    read: Callable[[str], bool] | None = None
    describe: Callable[[str], bool] | None = None

    def check(self, topics: Iterable[UUID], image: MetadataImage, may: Callable[[str], bool] | None) -> None:
        """Raise `RequestError` unless `may` is true of all topics that are there. It has no name of a topic
        that the client may not describe, as if it was not there."""
        for topic_id in topics if may is not None else ():
            topic = image.topics_by_id.get(topic_id)
            if topic is None or may is None or may(topic.name):
                continue
            if self.shows(topic.name):
                raise RequestError(ErrorCode.topic_authorization_failed, f"topic {topic.name}")
            raise RequestError(ErrorCode.unknown_topic_id, f"topic {topic_id}")

    def shows(self, name: str) -> bool:
        """Return whether the client may know the topic's name."""
        return self.describe is None or self.describe(name)
