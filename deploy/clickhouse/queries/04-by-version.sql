-- How much does a process of each version hold? {service}, {from}, {to}.
SELECT if(labels['version'] != '', labels['version'], build_id) AS version,
       uniqExact(host) AS hosts,
       round(sum(value) / uniqExact(host, pid, time)) AS mean_per_process,
       max(time) AS last_seen
FROM mem_profiler.held
WHERE service = {service:String} AND time BETWEEN {from:DateTime} AND {to:DateTime}
GROUP BY version
ORDER BY last_seen DESC;
