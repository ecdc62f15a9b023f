"""What `key_walk_kernel` calls as C; filter_kernel.py says what it does."""

cdef void insert_keys(
    unsigned long long *words, unsigned long long blocks, const unsigned char *data, const long long *spans,
    long long count
) noexcept nogil
