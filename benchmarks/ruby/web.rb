# frozen_string_literal: true

# Sidekiq's web pages, called in this process: `ruby web.rb URL`.  A JSON line for a JSON line; see apps/web.py.

require "json"
require "securerandom"
require "zlib"
require "sidekiq"
begin
  require "redis/connection/hiredis"
rescue LoadError
  # the slower driver
end
require "rack"
require "rack/mock"
require "rack/session/cookie"
require "sidekiq/web"

Redis.silence_deprecations = true
Redis.sadd_returns_boolean = false if Redis.respond_to?(:sadd_returns_boolean=)
Sidekiq.logger = Logger.new($stderr, level: Logger::ERROR)
Sidekiq.configure_client { |config| config.redis = {url: ARGV[0]} }
Sidekiq::Web.use(Rack::Session::Cookie, secret: SecureRandom.hex(32))
BROWSER = Rack::MockRequest.new(Sidekiq::Web)

# Counts what waits for Redis: a command, or a pipeline.
module Counted
  class << self
    attr_accessor :count
  end
  self.count = 0

  def process(commands)
    Counted.count += 1
    super
  end
end
Redis::Client.prepend(Counted)

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def cpu
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
end

def measure(path, calls, seconds)
  response = BROWSER.get(path)
  before, took, used, ends = Counted.count, [], [], now + seconds
  while took.size < calls && (took.empty? || now < ends)
    began, began_cpu = now, cpu
    BROWSER.get(path)
    took << now - began
    used << cpu - began_cpu
  end
  {
    status: response.status,
    seconds: took.sort[took.size / 2],
    cpu: used.sort[used.size / 2],
    round_trips: (Counted.count - before) / took.size,
    bytes: Zlib.gzip(response.body, level: 6).bytesize
  }
end

puts JSON.generate("ready")
$stdout.flush
$stdin.each_line do |line|
  puts JSON.generate(measure(*JSON.parse(line)))
  $stdout.flush
end
