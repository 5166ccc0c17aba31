/* Spends its time in `spin`, called by `outer`. */
__attribute__((noinline)) static long spin(long rounds)
{
    volatile long sum = 0;
    for (long i = 0; i < rounds; i++)
        sum += i;
    return sum;
}

__attribute__((noinline)) static long outer(long rounds)
{
    return spin(rounds) + 1;
}

int main(void)
{
    long sum = 0;
    for (int i = 0; i < 100; i++)
        sum += outer(2000000);
    return sum == 1;
}
