-- Which hosts hold more than a day ago? {service}, {hours}: how long a moment is looked at.
SELECT host,
       maxIf(total, time >= newest - toIntervalHour({hours:UInt32})) AS now,
       maxIf(total, time < newest - INTERVAL 1 DAY + toIntervalHour({hours:UInt32})) AS yesterday,
       now - yesterday AS growth
FROM
(
    SELECT host, pid, time, sum(value) AS total, (SELECT max(time) FROM mem_profiler.samples) AS newest
    FROM mem_profiler.held
    WHERE service = {service:String}
      AND time >= (SELECT max(time) FROM mem_profiler.samples) - INTERVAL 1 DAY
    GROUP BY host, pid, time
)
GROUP BY host
HAVING now > 0 AND yesterday > 0
ORDER BY growth DESC
LIMIT 20;
