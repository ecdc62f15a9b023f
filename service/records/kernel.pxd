"""What other kernels call as C; kernel.py says what each does.

C functions are inlined within one module only, so these are for once a batch, a record or a header.
"""

cdef long long crc32c(const unsigned char *data, long long position, long long end) noexcept nogil
cdef long long int32(const unsigned char *data, long long position) noexcept nogil
cdef long long int64(const unsigned char *data, long long position) noexcept nogil
cdef long long next_header(
    const unsigned char *data, long long position, long long end, long long *spans
) noexcept nogil
cdef long long parse_record(
    const unsigned char *data, long long position, long long end, long long *row
) noexcept nogil
cdef long long varint(
    const unsigned char *data, long long *at, long long end, long long last_shift
) noexcept nogil
