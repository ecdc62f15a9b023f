"""Our controller answers good and bad requests as a real Apache Kafka 4.3.1 node did.

`capture.py` sent them, one after another, to a fresh node 1 with num.partitions=4.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

from service.metadata.batches import decode_batches
from service.metadata.controller.controller import Controller
from service.metadata.controller.requests import (
    ZERO_UUID,
    AlterConfig,
    AlterResource,
    CreateTopic,
    DeleteTopic,
)
from service.metadata.image import MetadataImage
from service.metadata.publication import apply_batch
from tests.unit.metadata.controllers import AnyConfig, join, running

KAFKA = Path(__file__).parent / "kafka-4.3.1"

# Kafka 4.3.1 fails on an unknown operation with a NullPointerException; ours says what was wrong.
BETTER_THAN_KAFKA = {"unknown_server_error": ("invalid_request", "Unknown operations type 9")}


class Replay:
    """Sends the captured steps; topics are known by name, as ids differ from run to run."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.ids: dict[str, UUID] = {}

    async def step(self, step: dict[str, Any]) -> list[dict[str, Any]]:
        if "create" in step:
            return await self.create(step["create"], step["validate_only"])
        if "delete" in step:
            return await self.delete(step["delete"])
        return await self.alter(step["alter"], step["validate_only"])

    async def create(self, topics: list[list[Any]], validate_only: bool) -> list[dict[str, Any]]:
        requests = []
        for name, partitions, factor, *more in topics:
            assignments = tuple((p, tuple(brokers)) for p, brokers in (more[0] if more else ()))
            configs = tuple((key, value) for key, value in (more[1] if len(more) > 1 else ()))
            requests.append(CreateTopic(name, partitions, factor, assignments, configs))
        results = await self.controller.create_topics(requests, validate_only=validate_only)
        self.ids.update(
            {r.name: r.topic_id for r in results if r.topic_id != ZERO_UUID and not validate_only}
        )
        fields = ("name", "message", "num_partitions", "replication_factor")
        return [{"error": r.error.name, **{f: getattr(r, f) for f in fields}} for r in results]

    async def delete(self, topics: list[list[str | None]]) -> list[dict[str, Any]]:
        requests = []
        for name, topic_id in topics:
            known = ZERO_UUID if topic_id is None else self.ids.get(topic_id) or UUID(topic_id)
            requests.append(DeleteTopic(name, known))
        names = {topic_id: name for name, topic_id in self.ids.items()}
        return [
            {
                "name": r.name,
                "topic_id": None if r.topic_id == ZERO_UUID else names.get(r.topic_id, str(r.topic_id)),
                "error": r.error.name,
                "message": r.message,
            }
            for r in await self.controller.delete_topics(requests)
        ]

    async def alter(self, resources: list[list[Any]], validate_only: bool) -> list[dict[str, Any]]:
        requests = [
            AlterResource(kind, name, tuple(AlterConfig(*change) for change in changes))
            for kind, name, changes in resources
        ]
        results = await self.controller.incremental_alter_configs(
            requests, validate_only=validate_only, via_broker=1
        )
        return [
            {
                "resource_type": r.resource_type,
                "resource_name": r.resource_name,
                "error": r.error.name,
                "message": r.message,
            }
            for r in results
        ]


def kafkas_image() -> MetadataImage:
    image = MetadataImage()
    for batch in decode_batches((KAFKA / "00000000000000000000.log").read_bytes()):
        image, _ = apply_batch(image, batch)
    return image


def in_any_order(answers: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(answer, sort_keys=True) for answer in answers)


def test_every_answer_is_kafkas(tmp_path: Path) -> None:
    steps = json.loads((KAFKA / "controller-answers.json").read_text())

    async def scenario() -> None:
        async with running(tmp_path, rules=AnyConfig()) as controller:
            await join(controller)
            replay = Replay(controller)
            for step in steps:
                for answer in step["answers"]:
                    better = BETTER_THAN_KAFKA.get(answer["error"])
                    if better is not None:
                        answer["error"], answer["message"] = better
                ours = await replay.step(step)
                if "delete" in step:  # Kafka shuffles these
                    assert in_any_order(ours) == in_any_order(step["answers"]), step
                else:
                    assert ours == step["answers"], step
            kafka = kafkas_image()
            image = controller.image
            assert set(image.topics_by_name) == set(kafka.topics_by_name)
            for name, topic in kafka.topics_by_name.items():
                assert len(image.topics_by_name[name].partitions) == len(topic.partitions), name
                assert image.config(2, name) == kafka.config(2, name), name
            assert image.config(4, "1") == kafka.config(4, "1")

    asyncio.run(scenario())
