-- In which functions does a service allocate what it holds? {service}, {from}, {to}.
-- Mean over the profiles of that time.
WITH (SELECT uniqExact(host, pid, time) FROM mem_profiler.held
      WHERE service = {service:String} AND time BETWEEN {from:DateTime} AND {to:DateTime}) AS profiles
SELECT k.functions[1] AS function, round(sum(s.total) / profiles) AS flat, profiles
FROM
(
    SELECT stack, sum(value) AS total FROM mem_profiler.held
    WHERE service = {service:String} AND time BETWEEN {from:DateTime} AND {to:DateTime}
    GROUP BY stack
) AS s
ANY LEFT JOIN mem_profiler.named AS k USING (stack)
GROUP BY function
ORDER BY flat DESC
LIMIT 30;
