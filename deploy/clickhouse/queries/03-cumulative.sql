-- What is allocated in a function and all that it calls? {service}, {from}, {to}.
-- A function that is in a stack several times counts once.
SELECT arrayJoin(arrayDistinct(k.functions)) AS function, sum(s.total) AS cum
FROM
(
    SELECT stack, sum(value) AS total FROM mem_profiler.held
    WHERE service = {service:String} AND time BETWEEN {from:DateTime} AND {to:DateTime}
    GROUP BY stack
) AS s
ANY LEFT JOIN mem_profiler.named AS k USING (stack)
GROUP BY function
ORDER BY cum DESC
LIMIT 30;
