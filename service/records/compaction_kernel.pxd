"""What `erasure_kernel` calls as C; compaction_kernel.py says what each does."""

cdef long long copy_bytes(
    unsigned char *out, long long at, const unsigned char *data, long long position, long long size
) noexcept nogil
cdef long long is_needed(
    const unsigned char *data, long long at, long long end_offset, const long long *ids,
    const long long *lasts, long long count
) noexcept nogil
cdef long long write_empty(
    const unsigned char *data, long long at, unsigned char *out, long long used
) noexcept nogil
cdef long long write_rest(
    const unsigned char *data, long long at, long long size, const unsigned char *marks,
    const long long *judged, long long later_ms, unsigned char *out, long long used
) noexcept nogil
