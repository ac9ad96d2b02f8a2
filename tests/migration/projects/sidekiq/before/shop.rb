# A shop with three jobs.
require "sidekiq"
require "sidekiq-cron"

def note(line)
  File.write(ENV["LEDGER"], "#{line}\n", mode: "a")
end

class Welcome
  include Sidekiq::Worker

  def perform(user)
    note "welcome #{user}"
  end
end

class Charge
  include Sidekiq::Worker
  sidekiq_options retry: 3
  sidekiq_retry_in { 1 }

  def perform(order)
    unless File.read(ENV["LEDGER"]).include?("refused #{order}")
      note "refused #{order}"
      raise "the bank does not answer"
    end
    note "charged #{order}"
  end
end

class Report
  include Sidekiq::Worker

  def perform
    note "report"
  end
end

Sidekiq.configure_server do |_config|
  Sidekiq::Cron::Job.create(name: "report", cron: "*/2 * * * * *", class: "Report")
end
