/* Prints what the C library's functions do with alignments of all kinds: a letter each. */
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t alignments[] = {
    0, 1, 2, 3, 8, 12, 16, 24, 48, 64, 100, 4096, 5000, 1 << 20, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX,
};

/* Aligned, misaligned, refused with EINVAL, with ENOMEM, with something else. */
static char judge(void *object, size_t align, int error)
{
    if (!object)
        return error == EINVAL ? 'i' : error == ENOMEM ? 'm' : '?';
    memset(object, 1, 100);
    char said = align && (uintptr_t)object % (align & -align) ? 'X' : 'a';
    free(object);
    return said;
}

int main(void)
{
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        size_t align = alignments[i];
        char said[4] = "";
        errno = 0;
        void *object = aligned_alloc(align, 100);
        said[0] = judge(object, align, errno);
        errno = 0;
        object = memalign(align, 100);
        said[1] = judge(object, align, errno);
        object = NULL;
        int error = posix_memalign(&object, align, 100);
        said[2] = judge(object, align, error);
        printf("%zu %s\n", align, said);
    }
}
