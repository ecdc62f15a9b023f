"""What `column_kernel` reads and writes as C; the compiled column_buffers.py takes its types from here, too."""

cimport cython


@cython.final
cdef class BytesColumn:
    cdef long long entries
    cdef long long used
    cdef long long nulls
    cdef long long entry_room
    cdef long long byte_room
    cdef long long hint
    cdef bytearray _offsets_buf
    cdef bytearray _bits_buf
    cdef bytearray _data_buf
    cdef int *offsets
    cdef unsigned char *bits
    cdef unsigned char *data

    cpdef void begin(self)
    cpdef void reserve(self, long long entries, long long size)
    cdef void _point(self)
