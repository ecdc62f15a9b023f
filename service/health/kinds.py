"""Kinds of findings: severity, part of a node, meaning, what to do, and the heading in docs/health.md. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

from service.health.findings import Finding, Severity

NODE: Final = "node"
LOGS: Final = "logs"
DISKS: Final = "disks"
METADATA: Final = "metadata"
CLUSTER: Final = "cluster"
STORE: Final = "store"
RECOVERY: Final = "recovery"
TLS: Final = "tls"
TOKENS: Final = "tokens"
HTTP: Final = "http"
COORDINATORS: Final = "coordinators"


class FindingKind(NamedTuple):
    """A kind of finding. `part`: the check of `/readyz` that it belongs to; `anchor`: its heading in
    docs/health.md; `is_failure`: the node is not ready with it."""

    anchor: str
    part: str
    severity: Severity
    meaning: str
    action: str
    is_failure: bool = False

    def found(
        self, subject: str, words: str, since_ms: int | None = None, *, severity: Severity | None = None
    ) -> Finding:
        """Return a finding of this kind."""
        chosen = self.severity if severity is None else severity
        return Finding(chosen, subject, since_ms, words, self.meaning, self.action, self.anchor)


def _kind(
    anchor: str, part: str, severity: Severity, meaning: str, action: str, *, is_failure: bool = False
) -> FindingKind:
    return FindingKind(anchor, part, severity, meaning, action, is_failure)


NOTICE, WARNING, CRITICAL = Severity.NOTICE, Severity.WARNING, Severity.CRITICAL

NODE_NOT_SERVING: Final = _kind(
    "node-not-serving", NODE, CRITICAL,
    "It starts, stops or fails, and serves nobody.",
    "Read the end of its log. A start that lasts opens or recovers logs, or waits for controllers.",
    is_failure=True,
)  # fmt: skip
PART_NOT_OPEN: Final = _kind(
    "part-not-open", NODE, CRITICAL,
    "The node starts; what is named has to be read before it serves.",
    "Wait; after a kill, logs are recovered first. The node's log says what it waits for.",
    is_failure=True,
)  # fmt: skip
METADATA_STALE: Final = _kind(
    "metadata-stale", METADATA, CRITICAL,
    "What this node says of brokers, leaders and settings may have changed: no controller could tell it."
    " Records are still served where it leads, but nothing can be elected, created or altered.",
    "See that a majority of the controllers runs and can be reached from this node.",
)  # fmt: skip
CLUSTER_SILENT: Final = _kind(
    "cluster-does-not-answer", CLUSTER, CRITICAL,
    "No broker that is known here can be reached: whether the cluster serves anybody is not known.",
    "See whether the brokers run, and whether their listeners can be reached from here.",
)  # fmt: skip
QUORUM_SILENT: Final = _kind(
    "quorum-does-not-answer", CLUSTER, CRITICAL,
    "No controller leads: nothing can be elected, created or altered, and no dead broker is noticed.",
    "See that a majority of the controllers runs, and that they reach each other.",
)  # fmt: skip
VOTER_SILENT: Final = _kind(
    "voter-does-not-fetch", CLUSTER, WARNING,
    "A controller is down or cut off: the quorum has one vote less to lose.",
    "Start it, or replace it: firn cluster quorum, or kafka-metadata-quorum.",
)  # fmt: skip
BROKER_DOWN: Final = _kind(
    "broker-down", CLUSTER, CRITICAL,
    "The controller has fenced it, as it had no heartbeat from it for a session, or it is starting: it leads"
    " nothing, and its replicas fall behind.",
    "Start it. If its machine is lost, reassign its partitions and unregister it.",
)  # fmt: skip
BROKER_SILENT: Final = _kind(
    "broker-does-not-answer", CLUSTER, CRITICAL,
    "The metadata has it as alive, but it could not be reached from here.",
    "See whether its process runs and its listener can be reached from here; clients may not, either.",
)  # fmt: skip
PARTITIONS_OFFLINE: Final = _kind(
    "partitions-without-leader", CLUSTER, CRITICAL,
    "They can be neither read nor written: no eligible replica is alive.",
    "Start the brokers that are down. An unclean election loses records; firn cluster elect does it.",
)  # fmt: skip
UNDER_MIN_ISR: Final = _kind(
    "partitions-under-min-isr", CLUSTER, CRITICAL,
    "They refuse produce requests with acks=all, and transactions that touch them wait.",
    "Bring the missing replicas back: their brokers are down, their directories offline, or they are behind.",
)  # fmt: skip
UNDER_REPLICATED: Final = _kind(
    "partitions-under-replicated", CLUSTER, WARNING,
    "Replicas are out of sync: the next failure costs more.",
    "Bring the missing replicas back. Where no broker is down, one is slow: disk, network or throttle.",
)  # fmt: skip
HTTP_SILENT: Final = _kind(
    "http-listener-does-not-answer", CLUSTER, WARNING,
    "Its metrics and its own findings are not known: it is not watched.",
    "See whether firn.http.listener can be reached from here, with its token and certificate.",
)  # fmt: skip
UNANSWERED: Final = _kind(
    "question-unanswered", CLUSTER, WARNING,
    "This part of the cluster's health is not known.",
    "Ask again; if it stays, see whether the node that is named is overloaded or refuses the request.",
)  # fmt: skip
PREFIXES_DIFFER: Final = _kind(
    "prefixes-differ", STORE, WARNING,
    "A partition is archived where its leader's setting says: the archive falls apart.",
    "Give all brokers the same firn.remote.url.",
)  # fmt: skip
REPLICAS_OFFLINE: Final = _kind(
    "replicas-offline", LOGS, CRITICAL,
    "Their log could not be opened or has failed; other replicas serve them where there are any.",
    "Read the node's log for the reason: a damaged file, a failed disk, a failed fsync.",
)  # fmt: skip
DIRECTORY_OFFLINE: Final = _kind(
    "log-directory-offline", DISKS, CRITICAL,
    "It failed, and its replicas are served by other brokers where there are any.",
    "Replace the disk or mount it again, and restart the node.",
)  # fmt: skip
DISK_FULL: Final = _kind(
    "log-directory-full", DISKS, CRITICAL,
    "Producers to it are throttled or refused.",
    "Make room: less local.retention, another disk, replicas moved away. What is in the bucket goes first.",
)  # fmt: skip
DISK_FILLING: Final = _kind(
    "log-directory-fills-up", DISKS, NOTICE,
    "What the bucket has goes from it before its local retention is over.",
    "Nothing yet. If it stays, give it more room or less local.retention.",
)  # fmt: skip
STORE_FAILS: Final = _kind(
    "store-does-not-answer", STORE, CRITICAL,
    "Nothing is copied to the bucket, and what is only there cannot be read. Fresh records are served.",
    "See whether the store can be reached from the node, and whether its credentials hold.",
)  # fmt: skip
TIERING_HELD_BACK: Final = _kind(
    "tiering-held-back", STORE, WARNING,
    "Nothing of what is named is copied, expired or swept: local disks fill up.",
    "Do what the words say; firn fsck shows what the bucket has.",
)  # fmt: skip
UPLOADS_BEHIND: Final = _kind(
    "uploads-behind", STORE, WARNING,
    "Sealed segments wait for their upload: local disks fill up, and a lost disk loses more.",
    "Read the reason: a store that is slow or away, too little bandwidth, a partition that cannot be copied.",
)  # fmt: skip
CUTS_LATE: Final = _kind(
    "cuts-late", STORE, WARNING,
    "Should all disks be lost now, what was written since comes back only as far as segments are in the"
    " bucket.",
    "Read the reason: a broker that does not answer in time, a store that is slow or away, a partition that"
    " is waited for (firn tiers TOPIC).",
)  # fmt: skip
ORDER_OPEN: Final = _kind(
    "order-to-erase-stays-open", STORE, WARNING,
    "Records of keys that are to be erased are still on a replica, in the bucket or in a cut.",
    "Read the reason, or firn erase status: bring a broker back that is away, or unregister it; a store that"
    " refuses an object has to permit it.",
)  # fmt: skip
ORDER_LEFT: Final = _kind(
    "erased-objects-are-left", STORE, WARNING,
    "Nothing shows the erased records any more, but objects or versions that have them lie in the bucket"
    " after their grace.",
    "Read the reason, or firn erase status: versions that a lifecycle rule or a right to delete them would"
    " take, objects under a lock until its date.",
)  # fmt: skip
OWNER_UNKNOWN: Final = _kind(
    "prefix-owner-unknown", STORE, WARNING,
    "The node has not yet read who owns the prefix; it copies nothing before.",
    "Wait; if it stays, see whether the store can be reached from the node.",
)  # fmt: skip
OBJECTS_ASLEEP: Final = _kind(
    "objects-in-an-archive-class", STORE, WARNING,
    "Reads of them fail until somebody restores them.",
    "Restore them in the store, and keep lifecycle rules with archive classes from this prefix.",
)  # fmt: skip
RECOVERY_WAITS: Final = _kind(
    "recovery-unfinished", RECOVERY, WARNING,
    "A recovery from the bucket has left work.",
    "Set the settings of the topics and run firn topic settings-known; logs are compared by themselves.",
)  # fmt: skip
TAILS_LOADING: Final = _kind(
    "tails-are-loading", RECOVERY, WARNING,
    "The cluster was restored, and not all of its newest records are back: of these partitions the part in"
    " the bucket is read, nothing is taken yet.",
    "Wait: leaders load what clients ask for first. firn restore status says when all is served.",
)  # fmt: skip
TAIL_NOT_LOADED: Final = _kind(
    "tail-cannot-be-loaded", RECOVERY, CRITICAL,
    "A record that the cut has is missing or damaged in the bucket: the partition takes no records. All"
    " others are served.",
    "Bring the object back that is named; it is tried again every minute. Else restore from the cut before,"
    " or delete the topic.",
)  # fmt: skip
ERASURE_HELD: Final = _kind(
    "erasure-held-back", LOGS, WARNING,
    "Records that an order of erasure takes are still in a local log, or may be: the order is not done before"
    " each replica has carried it out.",
    "See the reason: bring a replica that is offline back, end a transaction that stays open, make room on a"
    " full disk, let the bucket be read. It is tried again every minute. firn erase status says what else is"
    " left.",
)  # fmt: skip
SHARDS_FAILED: Final = _kind(
    "coordinator-failed", COORDINATORS, CRITICAL,
    "Groups or transactions of these partitions have no coordinator.",
    "Read the node's log for the damaged record; a move of the leader loads them elsewhere.",
)  # fmt: skip
TLS_PROBLEM: Final = _kind(
    "certificate", TLS, WARNING,
    "A certificate ends soon, or its new file could not be used and the old one stays.",
    "Renew the certificate, or mend the file that is named.",
)  # fmt: skip
KEYS_PROBLEM: Final = _kind(
    "keys-of-an-issuer", TOKENS, WARNING,
    "Tokens of this issuer cannot be checked with fresh keys: logins may be refused.",
    "See whether the address of the keys can be reached from the node.",
)  # fmt: skip
HTTP_ACCESS: Final = _kind(
    "http-access", HTTP, WARNING,
    "The token or the certificate of the HTTP listener changed, and the old one stays; or it ends soon.",
    "Mend the file that is named.",
)  # fmt: skip

KINDS: Final = tuple(one for one in list(globals().values()) if isinstance(one, FindingKind))
BY_ANCHOR: Final = {one.anchor: one for one in KINDS}
