"""What `filter_kernel` calls as C; prefix_kernel.py says what each does."""

cdef long long first_bytes(
    long long codec, const unsigned char *data, long long at, long long end, unsigned char *out, long long room
) noexcept nogil
