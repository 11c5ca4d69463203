-- Fills, changes and checks a database in memory.
CREATE TABLE item (id INTEGER PRIMARY KEY, word TEXT NOT NULL, number INTEGER NOT NULL);
INSERT INTO item
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $ROWS)
  SELECT i, printf('%016x-%d', (i * 2654435761) % 4294967296, i), (i * 40503) % 65536 FROM n;
CREATE INDEX item_word ON item (word);
CREATE INDEX item_number ON item (number, id);
SELECT count(*), sum(number), min(word), max(word) FROM item;
UPDATE item SET number = number + 1, word = word || '+' WHERE id % 3 = 0;
DELETE FROM item WHERE id % 10 = 7;
SELECT count(*), sum(number), sum(length(word)) FROM item;
SELECT number, count(*), sum(id) FROM item GROUP BY number ORDER BY 2 DESC, 1 LIMIT 5;
SELECT word FROM item ORDER BY substr(word, 5) LIMIT 3;
PRAGMA integrity_check;
