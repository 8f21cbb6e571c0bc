// What Rust's ThreadSanitizer calls for copies of memory, and gcc's does not have: libc's
// own, which gcc's looks at.

#include <stddef.h>
#include <string.h>

void* __tsan_memcpy(void* to, const void* from, size_t size);
void* __tsan_memmove(void* to, const void* from, size_t size);
void* __tsan_memset(void* at, int byte, size_t size);

void* __tsan_memcpy(void* to, const void* from, size_t size) { return memcpy(to, from, size); }
void* __tsan_memmove(void* to, const void* from, size_t size) { return memmove(to, from, size); }
void* __tsan_memset(void* at, int byte, size_t size) { return memset(at, byte, size); }
