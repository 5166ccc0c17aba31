# Hashes, strings, threads, fibres, forks, compaction: a line for each result.
require "digest"
require "zlib"

def work(seed)
  x = seed
  words = Hash.new { |hash, key| hash[key] = [] }
  20_000.times do
    x = (x * 1_103_515_245 + 12_345) & 0x7fffffff
    words[x % 2000] << (97 + x % 26).chr * (x % 40)
  end
  text = words.sort.map { |key, list| "#{key}#{list.join}" }.join
  Digest::SHA256.hexdigest(Zlib::Inflate.inflate(Zlib::Deflate.deflate(text)))[0, 16]
end

puts "main: #{work(0)}"
(1..6).map { |n| Thread.new { [n, work(n)] } }.each { |t| puts "thread %d: %s" % t.value }
fibres = (1..50).map { |n| Fiber.new { 10.times { |i| Fiber.yield "x" * (n * i) } } }
puts "fibres: #{10.times.sum { fibres.sum { |f| f.resume.size } }}"
5.times do |n|
  reader, writer = IO.pipe
  pid = fork { reader.close; writer.write work(100 + n); exit! 7 }
  writer.close
  puts "fork #{n}: #{reader.read} #{Process.wait2(pid)[1].exitstatus}"
end
GC.start
GC.compact if GC.respond_to?(:compact)
puts "child: #{`echo ok`.strip}"
