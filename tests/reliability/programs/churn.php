<?php
// Arrays, strings, regular expressions, hashes, sorting, generators: a line for each result.
function numbers(int $seed, int $n) {
    for ($i = 0, $x = $seed; $i < $n; $i++) {
        $x = ($x * 1103515245 + 12345) & 0x7fffffff;
        yield $x;
    }
}

for ($round = 0; $round < 10; $round++) {
    $words = [];
    foreach (numbers($round, 20000) as $x) {
        $words["k" . ($x % 3000)][] = str_repeat(chr(97 + $x % 26), $x % 40);
    }
    ksort($words);
    echo "words $round: ", substr(sha1(json_encode($words)), 0, 16), "\n";
    $text = implode(" ", array_map(fn($list) => implode("", $list), $words));
    echo "pattern $round: ", preg_match_all('/a+b*/', $text), " ", strlen(strrev($text)), "\n";
}
$tree = new SplObjectStorage();
for ($i = 0; $i < 5000; $i++) {
    $node = new stdClass();
    $node->self = $node;
    if ($i % 3) $tree[$node] = $i;
}
unset($node);
gc_collect_cycles();
echo "tree: ", count($tree), "\n";
echo "child: ", trim(shell_exec("echo ok")), "\n";
