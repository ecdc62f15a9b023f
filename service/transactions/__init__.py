"""Transaction coordinator: states of transactional ids, and the decisions about them. [P]

Source: Apache Kafka 4.3 ``TransactionCoordinator``, ``TransactionStateManager``, ``TransactionMetadata``.
"""
