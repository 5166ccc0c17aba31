-- Stacks that grow on most hosts, by how much an hour from the first to the last profile.
-- {service}, {from}, {to}.
SELECT hosts, round(mean) AS bytes_per_hour, held,
       arrayStringConcat(arraySlice(k.functions, 1, 6), ' < ') AS stack_top
FROM
(
    SELECT stack, count() AS hosts, avg(slope) AS mean, sum(last) AS held
    FROM
    (
        SELECT stack, host, pid,
               argMax(value, time) AS last,
               (last - argMin(value, time)) * 3600000
                   / greatest(dateDiff('millisecond', min(time), max(time)), 1) AS slope,
               count() AS points
        FROM mem_profiler.held
        WHERE service = {service:String} AND time BETWEEN {from:DateTime} AND {to:DateTime}
        GROUP BY stack, host, pid
        HAVING points >= 3
    )
    WHERE slope > 0
    GROUP BY stack
) AS s
ANY LEFT JOIN mem_profiler.named AS k USING (stack)
ORDER BY hosts DESC, bytes_per_hour DESC
LIMIT 20;
