-- Which functions hold more on one day than on another, per profile? {service}, {before}, {after}.
WITH
    (SELECT uniqExact(host, pid, time) FROM mem_profiler.held
     WHERE service = {service:String} AND toDate(time) = {before:Date}) AS old,
    (SELECT uniqExact(host, pid, time) FROM mem_profiler.held
     WHERE service = {service:String} AND toDate(time) = {after:Date}) AS new
SELECT k.functions[1] AS function,
       round(sum(s.was) / greatest(old, 1)) AS before,
       round(sum(s.now) / greatest(new, 1)) AS after,
       after - before AS change
FROM
(
    SELECT stack, sumIf(value, toDate(time) = {before:Date}) AS was,
           sumIf(value, toDate(time) = {after:Date}) AS now
    FROM mem_profiler.held
    WHERE service = {service:String}
      AND toDate(time) IN ({before:Date}, {after:Date})
    GROUP BY stack
) AS s
ANY LEFT JOIN mem_profiler.named AS k USING (stack)
GROUP BY function
ORDER BY abs(change) DESC
LIMIT 30;
