/* What program.c takes for a library. */

typedef unsigned long word;

__attribute__((noinline, noclone, noipa)) static word arrange(word (*function)(word), word n)
{
    volatile word room[20];
    room[n] = function(n);
    return room[n] + 1;
}

word visit(word (*function)(word), word n)
{
    volatile word room[9];
    room[n] = arrange(function, n);
    return room[n] + 1;
}
