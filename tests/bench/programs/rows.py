"""Prints SQL that fills, indexes, joins and thins out a table: rows.py ROWS."""

import sys

rows = int(sys.argv[1])
print(f"""
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, place TEXT, amount REAL);
CREATE TABLE place(name TEXT PRIMARY KEY, size INTEGER);
INSERT INTO place
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
  SELECT 'place ' || i, i * 7 % 101 FROM n;
INSERT INTO item
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
  SELECT i, 'item ' || (i * 7919 % {rows}), 'place ' || (i % 1000 + 1), i * 0.5 FROM n;
CREATE INDEX by_name ON item(name);
SELECT count(*), sum(amount), group_concat(DISTINCT size)
  FROM item JOIN place ON item.place = place.name WHERE size > 50;
SELECT place, count(*), max(name) FROM item GROUP BY place ORDER BY 2 DESC, 1 LIMIT 3;
UPDATE item SET name = name || ' (changed)' WHERE id % 5 = 0;
DELETE FROM item WHERE id % 3 = 0;
SELECT count(*) FROM item;
""")
