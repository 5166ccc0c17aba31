// A library with a thread-local variable of its own.
static __thread void *volatile kept;

void keep(void *object) { kept = object; }
