-- What does each service hold, on how many hosts, and how fresh is that? {from}, {to}.
SELECT service, uniqExact(host) AS hosts, uniqExact(host, pid) AS processes,
       round(sum(value) / uniqExact(host, pid, time)) AS mean_per_process,
       max(time) AS newest
FROM mem_profiler.held
WHERE time BETWEEN {from:DateTime} AND {to:DateTime}
GROUP BY service
ORDER BY mean_per_process * processes DESC;
