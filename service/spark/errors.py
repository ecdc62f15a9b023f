"""Errors that a read of the archive raises besides the store's own. [P]"""

from __future__ import annotations

from service.base.errors import StorageError


class DataLossError(StorageError):
    """Requested records are not in the archive, or no longer.

    With ``failOnDataLoss=false`` it is logged and the read continues with what there is.
    """


class PlanOutdated(StorageError):
    """The objects of a plan were rewritten since, and what took their place cannot be divided as planned. No
    record is lost: a new plan has them all."""


class BrokerError(StorageError):
    """Brokers could not be reached, or did not answer as they should."""
