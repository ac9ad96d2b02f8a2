# frozen_string_literal: true

# Sidekiq's own web pages, without a server: answers with the status of each page, and with what broke it.
#
#   {"get": ["/", "/busy"]}   → {"/": [200, null], "/busy": [500, "NoMethodError: …"]}

require_relative "lines"
require "rack"
require "rack/mock"
require "rack/session/cookie"
require "securerandom"
require "sidekiq/web"

Sidekiq::Web.use(Rack::Session::Cookie, secret: SecureRandom.hex(32))
BROWSER = Rack::MockRequest.new(Sidekiq::Web)

answer_lines do |request|
  request["get"].to_h do |path|
    begin
      [path, [BROWSER.get(path).status, nil]]
    rescue StandardError => error
      [path, [500, "#{error.class}: #{error.message} (#{error.backtrace.first})"]]
    end
  end
end
