"""What `compaction_kernel` calls as C; key_kernel.py says what each does."""

cdef void hash_of(
    const unsigned char *data, long long position, long long size, const unsigned long long *secret,
    unsigned long long *out
) noexcept nogil
cdef unsigned long long slot_of(
    const unsigned long long *table, unsigned long long slots, const unsigned long long *key
) noexcept nogil
