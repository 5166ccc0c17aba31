-- Folded stacks of a service, root first, for flame-graph tools (or mem_parser). {service}, {from},
-- {to}. Run it with --format TSVRaw.
SELECT concat(
           arrayStringConcat(
               arrayMap(f -> if(f = '', '[unknown]', replaceAll(f, ';', ':')), arrayReverse(k.functions)),
               ';'),
           ' ', toString(s.total)) AS line
FROM
(
    SELECT stack, sum(value) AS total FROM mem_profiler.held
    WHERE service = {service:String} AND time BETWEEN {from:DateTime} AND {to:DateTime}
    GROUP BY stack
) AS s
ANY LEFT JOIN mem_profiler.named AS k USING (stack)
WHERE s.total != 0
ORDER BY line;
