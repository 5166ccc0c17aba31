-- Hosts whose processes hold far more than those of the others. {service}, {from}, {to}.
SELECT host, held, typical, round(held / typical, 2) AS ratio
FROM
(
    SELECT host, held, median(held) OVER () AS typical
    FROM
    (
        SELECT host, max(total) AS held
        FROM
        (
            SELECT host, pid, time, sum(value) AS total FROM mem_profiler.held
            WHERE service = {service:String} AND time BETWEEN {from:DateTime} AND {to:DateTime}
            GROUP BY host, pid, time
        )
        GROUP BY host
    )
)
WHERE held > 1.5 * typical
ORDER BY ratio DESC
LIMIT 20;
