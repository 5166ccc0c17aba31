-- Which services, hosts and versions hold memory through a function, or a library (CVE, bug)?
-- {function}: part of its name, or of the library's path; {from}, {to}.
SELECT service, labels['version'] AS version, uniqExact(host) AS hosts, sum(value) AS bytes
FROM mem_profiler.held
WHERE time BETWEEN {from:DateTime} AND {to:DateTime}
  AND stack IN
  (
      SELECT stack FROM mem_profiler.named
      WHERE arrayExists(f -> position(f, {function:String}) > 0, functions)
         OR arrayExists(m -> position(m, {function:String}) > 0, modules)
  )
GROUP BY service, version
ORDER BY bytes DESC;
