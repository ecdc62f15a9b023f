"""What a read of the archive can fail with besides the store's own errors. [P]"""

from __future__ import annotations

from service.base.errors import StorageError


class DataLossError(StorageError):
    """Records that were asked for are not in the archive, or no longer.

    With ``failOnDataLoss=false`` it is logged and the read goes on with what there is.
    """


class BrokerError(StorageError):
    """Brokers could not be asked, or did not answer as they should."""
