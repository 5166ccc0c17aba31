/* Records its own stack in places that unwinding for aarch64 has to cope with, as text:
 * registers, the words of the stack, and the functions that are on it. No C library: what is
 * recorded is this program's own. `record` builds it in several ways and runs it. */

#define NOINLINE __attribute__((noinline, noclone, noipa))

typedef unsigned long word;

/* library.c: built with frame records and without unwind tables in one of the ways. */
word visit(word (*function)(word), word n);

word stack_end;
static const char *name, *functions;

static word call(word number, word a, word b, word c, word d)
{
    register word x8 __asm__("x8") = number;
    register word x0 __asm__("x0") = a;
    register word x1 __asm__("x1") = b;
    register word x2 __asm__("x2") = c;
    register word x3 __asm__("x3") = d;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}

static void text(const char *line)
{
    word length = 0;
    while (line[length])
        length++;
    call(64, 1, (word)line, length, 0);
}

static void hex(word value)
{
    char line[18] = {0};
    int at = sizeof line - 1;
    do
        line[--at] = "0123456789abcdef"[value & 15];
    while (value >>= 4);
    line[--at] = ' ';
    text(line + at);
}

static void taken(const char *title, const char *on_it)
{
    name = title;
    functions = on_it;
}

/* Prints the registers here and the stack from here to its end. */
NOINLINE void recorded(void)
{
    word pc, sp, fp;
    __asm__ volatile("adr %0, .\n\tmov %1, sp\n\tmov %2, x29" : "=r"(pc), "=r"(sp), "=r"(fp));
    text("stack ");
    text(name);
    text(" ");
    text(functions);
    text("\nregisters");
    hex(pc + 1); /* a return address is one more than an address inside the call */
    hex(sp);
    hex(fp);
    text("\nwords");
    for (word *at = (word *)sp; at < (word *)stack_end; at++)
        hex(*at);
    text("\n");
}

NOINLINE word innermost(word n)
{
    recorded();
    return n + 1;
}

/* Several frames of one function. */
NOINLINE word deep(word n)
{
    volatile word room[5];
    room[n] = n;
    return (n ? deep(n - 1) : innermost(n)) + room[n];
}

/* A frame of a size that only the frame pointer tells. */
NOINLINE word sized(word n)
{
    volatile char room[n * 100 + 40];
    room[n] = 1;
    return deep(n) + room[n];
}

/* Has more than the offsets of one instruction reach. */
NOINLINE word wide(word n)
{
    volatile char room[5000];
    room[n] = 1;
    return sized(n) + room[n];
}

/* Saves nothing: its return address is in the link register when the trap is taken. */
NOINLINE word leaf(word n)
{
    __asm__ volatile("brk #0");
    return n + 3;
}

NOINLINE word calls_leaf(word n)
{
    volatile word room[3];
    room[0] = leaf(n);
    return room[0] + 1;
}

/* Is interrupted where it has a frame. */
NOINLINE word interrupted(word n)
{
    volatile word room[3];
    taken("plain", "recorded innermost interrupted begin _start");
    room[0] = innermost(n);
    taken("interrupted", "recorded handler handler_return interrupted begin _start");
    __asm__ volatile("brk #0");
    return room[0];
}

NOINLINE void handler(int signal, void *info, char *context)
{
    (void)signal, (void)info;
    recorded();
    *(word *)(context + 176 + 8 + 32 * 8) += 4; /* behind the trap */
}

/* As the kernel's vdso has it: no unwind table says anything of it, nor of the instruction before. */
void handler_return(void);
__asm__(".text\n\tnop\n.type handler_return, %function\nhandler_return:\n\tmov x8, #139\n\tsvc #0\n"
        "\t.size handler_return, . - handler_return\n");

static void on_trap(void)
{
    struct {
        void (*function)(int, void *, char *);
        word flags;
        void (*restorer)(void);
        word mask;
    } action = {handler, 0x04000004, handler_return, 0};
    call(134, 5, (word)&action, 0, 8);
}

static void maps(void)
{
    static char line[256];
    word file = call(56, -100, (word) "/proc/self/maps", 0, 0), got;
    while ((got = call(63, file, (word)line, sizeof line, 0)) && got <= sizeof line)
        call(64, 1, (word)line, got, 0);
}

NOINLINE void begin(word *sp)
{
    stack_end = (word)(sp + 2);
    taken("calls", "recorded innermost deep deep deep sized wide begin _start");
    wide(2);
    taken("library", "recorded innermost deep deep arrange visit begin _start");
    visit(deep, 1);
    on_trap();
    taken("leaf", "recorded handler handler_return leaf calls_leaf begin _start");
    calls_leaf(1);
    interrupted(1);
    maps();
    call(94, 0, 0, 0, 0);
}

__asm__(".text\n.globl _start\n.type _start, %function\n_start:\n\t.cfi_startproc\n"
        "\t.cfi_undefined x30\n\tmov x29, #0\n\tmov x30, #0\n\tmov x0, sp\n\tbl begin\n\tbrk #1\n"
        "\t.cfi_endproc\n\t.size _start, . - _start\n");
