// guards: threads with the smallest stack, their own or the default one, write to a stream without a buffer
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

// glibc writes to such a stream through 8 KiB on the stack.
static void *write_line(void *argument)
{
    char *text = malloc(100);
    snprintf(text, 100, "%s", (char *)argument);
    fprintf(stdout, "%s %d\n", text, 7);
    free(text);
    return NULL;
}

static int run(const pthread_attr_t *attributes, char *name)
{
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        int error = pthread_create(&thread, attributes, write_line, name);
        if (error != 0)
            return error;
        pthread_join(thread, NULL);
    }
    return 0;
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN);
    int error = run(&attributes, "of its own");
    size_t size;
    pthread_attr_getstacksize(&attributes, &size);
    if (size != PTHREAD_STACK_MIN)
        error = 1;
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
    error |= run(NULL, "by default");
    pthread_attr_init(&attributes);
    error |= run(&attributes, "of new attributes");
    pthread_attr_destroy(&attributes);
    return error;
}
