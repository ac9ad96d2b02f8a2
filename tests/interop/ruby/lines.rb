# frozen_string_literal: true

# One JSON line in, one JSON line out, so that one Ruby process serves a whole run of tests.
#
# Standard output belongs to the answers: Sidekiq's logger would write there too, and goes to standard error.

require "json"
require "sidekiq"

Redis.silence_deprecations = true # 6.4 is older than the client beside it
ANSWERS = $stdout.dup
ANSWERS.sync = true
$stdout.reopen($stderr)
Sidekiq.logger = Logger.new($stderr, level: Logger::ERROR)

def answer(reply)
  ANSWERS.puts(JSON.generate(reply, max_nesting: 0))
end

# Yields each request and answers with what the block returned, or with the error that it raised.
def answer_lines
  answer({value: Sidekiq::VERSION})
  $stdin.each_line do |line|
    begin
      reply = {value: yield(JSON.parse(line, max_nesting: 0))}
    rescue StandardError => error
      reply = {error: "#{error.class}: #{error.message}", backtrace: error.backtrace.first(10)}
    end
    answer(reply)
  end
end
