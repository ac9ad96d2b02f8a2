# frozen_string_literal: true

# Sidekiq's own web pages, without a server, as one browser sees them that keeps its cookies.
#
#   {"get": ["/", "/busy"]}                                 → {"/": [200, null], "/busy": [500, "NoMethodError: …"]}
#   {"method": "POST", "path": "/busy", "form": "quiet=1", "headers": {"HTTP_REFERER": "…"}}
#                                                           → {"status": 302, "headers": {…}, "body": "…"}
#   {"routes": true}                                        → ["GET /", "POST /busy", "GET /queues/:name", …]
#   {"forget": true}                                        → true; the cookies are gone

require_relative "lines"
require "rack"
require "rack/mock"
require "rack/session/cookie"
require "securerandom"
require "sidekiq/web"

Sidekiq::Web.use(Rack::Session::Cookie, secret: SecureRandom.hex(32))
BROWSER = Rack::MockRequest.new(Sidekiq::Web)
COOKIES = {} # rubocop:disable Style/MutableConstant

def visit(request)
  options = request.fetch("headers", {}).merge("HTTP_COOKIE" => COOKIES.map { |pair| pair.join("=") }.join("; "))
  if request.key?("form")
    options["CONTENT_TYPE"] = "application/x-www-form-urlencoded"
    options[:input] = request["form"]
  end
  response = BROWSER.request(request["method"], request["path"], options)
  Array(response.headers["Set-Cookie"]).flat_map(&:lines).each do |line|
    name, value = line[/\A[^;]*/].strip.split("=", 2)
    COOKIES[name] = value
  end
  {status: response.status, headers: response.headers.to_h, body: response.body.dup.force_encoding("UTF-8").scrub}
end

def status_of(path)
  [BROWSER.get(path).status, nil]
rescue StandardError => error
  [500, "#{error.class}: #{error.message} (#{error.backtrace.first})"]
end

def routes
  Sidekiq::WebApplication.instance_variable_get(:@routes).flat_map do |method, list|
    list.map { |route| "#{method} #{route.pattern}" }
  end
end

answer_lines do |request|
  if request.key?("get") then request["get"].to_h { |path| [path, status_of(path)] }
  elsif request.key?("routes") then routes
  elsif request.key?("forget") then COOKIES.clear && true
  else visit(request)
  end
end
